// The work list of grouped_kernel: which weight rows and which rows of x each tile multiplies, from counts that only
// the device knows. Every role of every block works it out for itself, so nobody has to be told.
#pragma once

#include <cuda.h>

#include "kernels/cuda/grouped.h"

namespace mdi::cuda {

struct GroupedParams {
  CUtensorMap x, w0, w1;
  const e8m0* scale0;
  const e8m0* scale1;
  const int32_t* row_begin;
  bf16* y;
  float* y_f32;
  const float* sum;
  const float* row_weight;
  const bf16* bias;
  const bf16* residual;
  int64_t ldy;
  float limit;
  int32_t rows, n, k, groups, row_tiles, n_per_column_group;
  int32_t parts, stages;  // of K; of the ring
  bool gelu, y_words;
};

struct GroupTile {
  int group, n0;  // first weight row inside the group
  int row, rows;  // first row of x, rows that exist
};

template <int kTokens>
struct TileList {
  const int32_t* row_begin;   // shared [groups + 1]
  const int32_t* tile_begin;  // shared [groups + 1]
  int tiles;

  // Token tiles are the fastest index: they share the weights, which come from memory once.
  __device__ GroupTile at(int tile, int& group, int rows_per_tile) const {
    while (tile >= tile_begin[group + 1]) ++group;
    const int count = row_begin[group + 1] - row_begin[group];
    const int token_tiles = (count + kTokens - 1) / kTokens;
    const int local = tile - tile_begin[group];
    const int first = local % token_tiles * kTokens;
    return {.group = group,
            .n0 = local / token_tiles * rows_per_tile,
            .row = row_begin[group] + first,
            .rows = min(kTokens, count - first)};
  }
};

// By the first warp; then a __syncthreads.
template <int kTokens>
__device__ inline void list_tiles(const GroupedParams& p, int32_t* row_begin, int32_t* tile_begin) {
  const int lane = static_cast<int>(threadIdx.x);
  int carry = 0;
  for (int base = 0; base < p.groups; base += 32) {
    const int g = base + lane;
    int begin = 0, end = 0;
    if (g < p.groups) {
      begin = p.row_begin != nullptr ? p.row_begin[g] : 0;
      end = p.row_begin != nullptr ? p.row_begin[g + 1] : p.rows;
      row_begin[g] = begin;
      if (g + 1 == p.groups) row_begin[p.groups] = end;
    }
    int sum = (end - begin + kTokens - 1) / kTokens * p.row_tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(0xFFFFFFFFu, sum, step);
      if (lane >= step) sum += left;
    }
    if (g < p.groups) tile_begin[g + 1] = carry + sum;
    carry += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  if (lane == 0) tile_begin[0] = 0;
}

}  // namespace mdi::cuda
