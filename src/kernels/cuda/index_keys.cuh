// Which keys a query of index_select has, for the kernels that score them.
#pragma once

#include "kernels/cuda/index.h"

namespace mdi::cuda {

// Scores for any shape. scale: of the head weights.
void plain_index_scores(CudaContext&, const IndexRows&, float scale);

// Key `i` of query row t as a compressed position; -1 when there is none.
template <bool kFiltered>
__device__ inline int32_t key_position(const IndexRows& r, int64_t t, int32_t i, int32_t end) {
  if constexpr (!kFiltered) return i < end ? i : -1;
  const int32_t slot = i / r.block_size;
  if (slot >= r.candidate_blocks) return -1;
  const int32_t block = r.candidates[t * r.candidate_blocks + slot];
  const int32_t position = block * r.block_size + i % r.block_size;
  return block >= 0 && position < end ? position : -1;
}

}  // namespace mdi::cuda
