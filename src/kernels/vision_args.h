// Arguments of the vision tower's operations (ops.h; vision.md 2, 3). Rows are the patches of one image, in reading
// order; a row's result may depend on all of them (attention), on nothing outside the image.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// y = bf16(fp32(x) . w + bias), then bf16(gelu(y)) or bf16(residual + y). The exact (erf) GELU.
struct VisionLinearArgs {
  int64_t rows = 0;
  const bf16* x = nullptr;         // [rows, w.k]
  LinearWeight w;                  // kBF16
  const bf16* bias = nullptr;      // [w.n] or null
  bool gelu = false;               // not with a residual
  const bf16* residual = nullptr;  // [rows, w.n] or null; may be y
  bf16* y = nullptr;               // out [rows, w.n]
};

// y = RMSNorm(x) (3.6).
struct VisionNormArgs {
  int64_t rows = 0;
  int32_t dim = 0;
  float eps = 0;
  const bf16* x = nullptr;       // [rows, dim]
  const bf16* weight = nullptr;  // [dim]
  bf16* y = nullptr;             // out [rows, dim]
};

// Attention of every patch to every patch. q and k are rotated first, in fp32, and rounded to bf16: the head in halves
// (a, b) becomes (a cos - b sin, b cos + a sin), with the angles of the patch's row, then those of its column. Scores
// times head_dim^-0.5, softmax and the product with v in fp32, rounded once (unlike 6.7, which rounds the weights).
struct VisionAttentionArgs {
  int64_t rows = 0;
  int32_t columns = 0;  // patches a row of the image
  int32_t heads = 0, head_dim = 0;
  RopeTable rope;             // rope_dim = head_dim / 2: a quarter of the head for each of row and column
  const bf16* qkv = nullptr;  // [rows, 3, heads, head_dim]
  bf16* o = nullptr;          // out [rows, heads, head_dim]
};

// y = bf16(bf16(silu(gate)) * up).
struct VisionGateArgs {
  int64_t rows = 0;
  int32_t inter = 0;
  const bf16* gate_up = nullptr;  // [rows, 2, inter]
  bf16* y = nullptr;              // out [rows, inter]
};

// Windows of side x side patches, channel major: y[window, c * side^2 + dy * side + dx]; zeros past the right and the
// bottom edge.
struct VisionWindowsArgs {
  int32_t patch_rows = 0, patch_cols = 0, side = 0, dim = 0;
  const bf16* x = nullptr;  // [patch_rows, patch_cols, dim]
  bf16* y = nullptr;        // out [ceil(patch_rows / side) * ceil(patch_cols / side), dim * side^2]
};

}  // namespace mdi
