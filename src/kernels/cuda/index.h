// The two halves of index_select (spec 6.6), on some of the step's rows: scores of every key a query may see, then the
// selections made from them. Scores lie in scratch memory, so rows are taken a few hundred at a time.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

struct IndexRows {
  StepView step;
  int32_t first = 0, count = 0;  // rows of the step
  SourceCache cache;
  int32_t heads = 0, key_dim = 0;
  const bf16* iq = nullptr;  // [T, heads, key_dim] rotated, on the fp4 grid
  const bf16* w = nullptr;   // [T, heads] the product with weights_proj, not yet scaled
  // Filtered: the keys of query t are those of its candidate blocks, in their order. Null: all visible ones.
  const int32_t* candidates = nullptr;  // [T, candidate_blocks]
  int32_t candidate_blocks = 0, block_size = 1;
  // scores[i, j]: row first + i, its j-th key. stride is a multiple of 8 and no smaller than the longest row; what lies
  // past a query's last key is not specified.
  bf16* scores = nullptr;
  int64_t stride = 0;
};

// Workspace: none. count = 0 is legal.
void index_scores(CudaContext&, const IndexRows&);

// selected[t] = the k best positions, ascending, then -1; candidate[t] = the `keep` best blocks of block_size
// positions by their best score, the newest always among them, ascending, then -1. Ties: the lower one. Minus infinity
// is never selected.
void select_positions(CudaContext&, const IndexRows&, int32_t k, int32_t* selected);
void select_blocks(CudaContext&, const IndexRows&, int32_t block_size, int32_t keep, int32_t* candidates);

}  // namespace mdi::cuda
