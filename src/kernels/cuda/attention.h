// The two kernels behind sparse_attention (ops.h): one for any shape, one for the released model's.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

struct AttentionParams {
  StepView step;
  SparseAttentionArgs args;
  int32_t slots = 0;         // keys of a query, present or not: the window, then the selected or the block's own rows
  int64_t window_bytes = 0;  // of a window row
};

// Heads in multiples of 64, head_dim 512, and arrays whose alignment the kernel relies on. The choice depends on the
// model's shape, never on the step's.
bool fits_attention_wgmma(const AttentionParams& p);
void attention_wgmma(CudaContext& context, const AttentionParams& p);
void attention_generic(CudaContext& context, const AttentionParams& p);

}  // namespace mdi::cuda
