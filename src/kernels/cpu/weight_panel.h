// Expands stored weights to what the dense products multiply, a panel of 64 rows at a time and never a whole weight.
//
// The panel comes out with k outermost: value (k, n) of 64 rows n side by side, so that one vector holds 16 outputs.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace mdi::cpu {

inline constexpr int kPanel = 64;  // weight rows (outputs) of a panel

struct WeightPanel {
  LinearWeight w;
  int64_t first = 0;  // first row, a multiple of 64
  int rows = 0;       // rows that exist, 1..64
  // Rows whose scales come near the ends of fp32's range are expanded times 2^-shift, and their outputs are multiplied
  // by 2^shift: the product may be finite where the weight by itself, or its product with x, is not.
  bool shifted = false;
  int32_t shift[kPanel] = {};
};

WeightPanel weight_panel(const LinearWeight& w, int64_t first);

// Columns of k that are expanded together: 64 bytes of a row.
int64_t strip_width(WeightKind kind);

// Columns [k0, k1) of the panel to out [k1 - k0 rounded up to strips][64]; columns past w.k are 0. k0 is a multiple of
// the strip width. NaN codes and NaN scales give NaN. Columns of rows that do not exist hold anything.
void expand_panel(const WeightPanel& p, int64_t k0, int64_t k1, float* out);

// The same in bf16 (exact for every kind but kF32). pairs: [k / 2][64][2], the order of bf16 matrix instructions; else
// [k][64].
void expand_panel(const WeightPanel& p, int64_t k0, int64_t k1, bool pairs, bf16* out);

}  // namespace mdi::cpu
