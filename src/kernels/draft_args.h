// Arguments of the operations that only the draft layers use (ops.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// y = RMSNorm(linear(x, w)) (dspark.md 1).
struct LinearNormArgs {
  float eps = 0;
  const bf16* x = nullptr;  // [T, w.k]
  LinearWeight w;
  const bf16* norm = nullptr;  // [w.n]
  bf16* y = nullptr;           // out [T, w.n]
};

// One link of the draft's bigram chain and its confidence (dspark.md 4), for one block row of each sequence:
// logits = base + fp32(embed[token]) . head, confidence = (z, embed[token]) . proj, all fp32.
struct MarkovArgs {
  int32_t sequences = 0, dim = 0, rank = 0;
  const int32_t* token = nullptr;  // [sequences]
  const bf16* embed = nullptr;     // [vocab, rank]
  LinearWeight head;               // kBF16 [vocab, rank]
  LinearWeight confidence_proj;    // kBF16 [1, dim + rank]
  const float* base = nullptr;     // sequence s: base + s * base_stride
  int64_t base_stride = 0;
  const bf16* z = nullptr;  // sequence s: z + s * z_stride, [dim]
  int64_t z_stride = 0;
  float* logits = nullptr;      // out [sequences, vocab]
  float* confidence = nullptr;  // out [sequences]
};

}  // namespace mdi
