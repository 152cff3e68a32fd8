// Host side of grouped_kernel: tile width, stages, tensor maps. Instantiated once per storage (grouped_<storage>.cu),
// so that the builds run in parallel.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/grouped_kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace mdi::cuda {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline constexpr int kWidths[] = {256, 192, 160, 144, 128, 96, 64, 32};  // tokens of a tile; a kernel for each

// A tile costs its width, but no less than the expansion of its weights, plus the epilogue's share. One group: the
// width with the cheapest waves of blocks. Many groups of about usual_rows, give or take two square roots: the cheapest
// tiles.
inline int pick_width(const GroupedProduct& g, int64_t row_tiles, int multiprocessors) {
  int best = 0;
  int64_t cheapest = INT64_MAX;
  for (const int width : kWidths) {
    int64_t tiles = 0;
    if (g.row_begin == nullptr) {
      tiles = divide_up(divide_up(g.x_rows, width) * row_tiles, multiprocessors);
    } else {
      const auto spread = static_cast<int64_t>(std::sqrt(static_cast<double>(g.usual_rows)));
      for (int64_t i = -2; i <= 2; ++i) tiles += divide_up(std::max<int64_t>(g.usual_rows + i * spread, 1), width);
    }
    const int64_t cost = tiles * (std::max(width, 56) + 16);
    if (cost < cheapest) {
      cheapest = cost;
      best = width;
    }
  }
  return best;
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
void launch_width(CudaContext& context, GroupedParams p, const GroupedProduct& g) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  const int64_t column_groups = g.n_per_column_group > 0 ? g.weight[0].n / g.n_per_column_group : 1;
  p.x =
      tensor_map(g.x, 2, g.x_rows, column_groups * g.weight[0].k, g.ldx * 2, kTokens, kStageColumns, BoxSwizzle::k128);
  const auto kernel = grouped_kernel<kKind, kEpilogue, kTokens>;
  static const bool allowed = [&] {
    MDI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kTotal));
    return true;
  }();
  static_cast<void>(allowed);
  int64_t blocks = context.multiprocessors;
  if (g.row_begin == nullptr) blocks = std::min(blocks, divide_up(g.x_rows, kTokens) * p.row_tiles);
  kernel<<<static_cast<unsigned>(blocks), kThreads, Layout::kTotal, context.stream>>>(p);
  MDI_CUDA_LAUNCHED(context, "grouped product, groups " + std::to_string(g.groups) + ", rows " +
                                 std::to_string(g.x_rows) + ", n " + std::to_string(p.n) + ", k " +
                                 std::to_string(p.k) + ", tiles of " + std::to_string(kTokens));
}

template <WeightKind kKind, Epilogue kEpilogue>
void launch_grouped(CudaContext& context, const GroupedProduct& g) {
  constexpr bool kTwo = kEpilogue == Epilogue::kSwiglu;
  constexpr int kRowsPerTile = kTwo ? kTileRows / 2 : kTileRows;
  const LinearWeight& w = g.weight[0];
  const auto weight_map = [&](const void* data) {
    const int64_t rows = g.groups * w.n;
    if constexpr (kKind == WeightKind::kBF16) {
      return tensor_map(data, 2, rows, w.k, w.k * 2, kRowsPerTile, kStageColumns, BoxSwizzle::k128);
    } else if constexpr (kKind == WeightKind::kE4M3) {
      return tensor_map(data, 1, rows, w.k, w.k, kRowsPerTile, kStageColumns, BoxSwizzle::k64);
    } else {
      return tensor_map(data, 1, rows, w.k / 2, w.k / 2, kRowsPerTile, kStageColumns / 2, BoxSwizzle::k32);
    }
  };
  GroupedParams p{};
  p.w0 = weight_map(w.data);
  p.scale0 = w.scale;
  if constexpr (kTwo) {
    p.w1 = weight_map(g.weight[1].data);
    p.scale1 = g.weight[1].scale;
  }
  p.row_begin = g.row_begin;
  p.y = g.y;
  p.y_f32 = g.y_f32;
  p.sum = g.sum;
  p.row_weight = g.row_weight;
  p.ldy = g.ldy;
  p.limit = g.limit;
  p.rows = static_cast<int32_t>(g.x_rows);
  p.n = static_cast<int32_t>(w.n);
  p.k = static_cast<int32_t>(w.k);
  p.groups = g.groups;
  p.row_tiles = static_cast<int32_t>(divide_up(w.n, kRowsPerTile));
  p.n_per_column_group = static_cast<int32_t>(g.n_per_column_group);
  switch (g.width != 0 ? g.width : pick_width(g, p.row_tiles, context.multiprocessors)) {
    case 32:
      return launch_width<kKind, kEpilogue, 32>(context, p, g);
    case 64:
      return launch_width<kKind, kEpilogue, 64>(context, p, g);
    case 96:
      return launch_width<kKind, kEpilogue, 96>(context, p, g);
    case 128:
      return launch_width<kKind, kEpilogue, 128>(context, p, g);
    case 144:
      return launch_width<kKind, kEpilogue, 144>(context, p, g);
    case 160:
      return launch_width<kKind, kEpilogue, 160>(context, p, g);
    case 192:
      return launch_width<kKind, kEpilogue, 192>(context, p, g);
    default:
      return launch_width<kKind, kEpilogue, 256>(context, p, g);
  }
}

}  // namespace mdi::cuda
