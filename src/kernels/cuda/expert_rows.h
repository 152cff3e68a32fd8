// The permutation of the routed experts: which rows of which tokens each local expert gets, worked out on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// Rows of the local experts, by ascending expert and inside an expert by ascending token, so that every sum has one
// order. They are worked on in passes of at most pass_rows, because how many there are is known on the device alone and
// buffers for the worst case would be several times the usual one.
struct ExpertRows {
  int32_t topk = 0, first = 0, count = 0;
  int64_t entries = 0;    // tokens * topk
  int64_t pass_rows = 0;  // rows of a pass
  int64_t passes = 0;
  int32_t* row_begin = nullptr;  // [passes, count + 1] of each expert inside the pass
  int32_t* row_token = nullptr;  // [entries] token of each row
  float* row_weight = nullptr;   // [entries] its routing weight
  int32_t* row_of = nullptr;     // [entries] row of each local (token, choice); others are not written

  constexpr const int32_t* begin_of(int64_t pass) const { return row_begin + pass * (count + 1); }
};

// index, weight [tokens, topk]; experts [first, first + count) are local, at most 512. Takes 16 bytes an entry and a
// few hundred a pass from the workspace.
ExpertRows sort_expert_rows(CudaContext& context, const int32_t* index, const float* weight, int64_t tokens,
                            int32_t topk, int32_t first, int32_t count, int64_t pass_rows);

// out [rows of the pass, dim] = act_quant_dequant of the rows' tokens. dim % 8 == 0; words: in the order of
// word_order.cuh, dim % 64 == 0.
void gather_expert_rows(CudaContext& context, const ExpertRows& rows, int64_t pass, const bf16* x, int64_t dim,
                        bool words, bf16* out);
// out [rows, dim] = x in that order.
void word_order_rows(CudaContext& context, const bf16* x, int64_t ldx, int64_t rows, int64_t dim, bf16* out);

// sum[t] (pass 0: from zero) += y of the token's rows in this pass, by ascending expert. dim % 8 == 0.
void combine_expert_rows(CudaContext& context, const ExpertRows& rows, int64_t pass, const int32_t* index,
                         int64_t tokens, const bf16* y, int64_t dim, float* sum);

// out = bf16(sum + fp32(y)), n values of 16-byte aligned arrays. y may be out.
void add_rows(CudaContext& context, const float* sum, const bf16* y, int64_t n, bf16* out);

}  // namespace mdi::cuda
