// Host side of grouped_kernel: tile width, stages, tensor maps. Instantiated once per storage (grouped_<storage>.cu),
// so that the builds run in parallel.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cuda/grouped_kernel.cuh"
#include "kernels/cuda/tensor_map.h"

namespace mdi::cuda {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tile costs its width, but no less than the expansion of its weights, plus the epilogue's share. One group: the
// width with the cheapest waves over the multiprocessors. Many groups of about usual_rows, give or take two square
// roots: the cheapest tiles.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
int64_t cost_of_width(const GroupedProduct& g, int multiprocessors) {
  constexpr int64_t kTile = 8 * std::max(kTokens, 56) + 128 + kTokens;
  if (g.row_begin == nullptr) {
    using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
    const int64_t tiles = divide_up(g.x_rows, kTokens) * divide_up(g.weight[0].n, Layout::kOutputs);
    return divide_up(tiles, multiprocessors) * Layout::Shape::kRows * kTile;
  }
  const auto spread = static_cast<int64_t>(std::sqrt(static_cast<double>(g.usual_rows)));
  int64_t tiles = 0;
  for (int64_t i = -2; i <= 2; ++i) tiles += divide_up(std::max<int64_t>(g.usual_rows + i * spread, 1), kTokens);
  return tiles * kTile;
}

template <WeightKind kKind>
CUtensorMap weight_map(const LinearWeight& w, int64_t groups, int box_rows, int steps) {
  const int64_t rows = groups * w.n;
  if constexpr (kKind == WeightKind::kBF16) {
    return tensor_map(w.data, 2, rows, w.k, w.k * 2, box_rows, kStepColumns, BoxSwizzle::k128);
  } else if constexpr (kKind == WeightKind::kE4M3) {
    return tensor_map(w.data, 1, rows, w.k, w.k, box_rows, kStepColumns, BoxSwizzle::k64);
  } else {
    return tensor_map(w.data, 1, rows, w.k / 2, w.k / 2, box_rows, steps * kStepColumns / 2,
                      steps == 1 ? BoxSwizzle::k32 : BoxSwizzle::k128);
  }
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
void launch_width(CudaContext& context, const GroupedProduct& g) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  const LinearWeight& w = g.weight[0];
  const int64_t column_groups = g.n_per_column_group > 0 ? w.n / g.n_per_column_group : 1;
  GroupedParams p{};
  p.x = tensor_map(g.x, 2, g.x_rows, column_groups * w.k, g.ldx * 2, kTokens, kStepColumns, BoxSwizzle::k128);
  p.w0 = weight_map<kKind>(w, g.groups, Layout::kOutputs, Layout::Shape::kSteps);
  p.scale0 = w.scale;
  if constexpr (kEpilogue == Epilogue::kSwiglu) {
    p.w1 = weight_map<kKind>(g.weight[1], g.groups, Layout::kOutputs, Layout::Shape::kSteps);
    p.scale1 = g.weight[1].scale;
  }
  p.row_begin = g.row_begin;
  p.y = g.y;
  p.y_f32 = g.y_f32;
  p.sum = g.sum;
  p.row_weight = g.row_weight;
  p.bias = g.bias;
  p.residual = g.residual;
  p.gelu = g.gelu;
  p.y_words = g.y_words;
  p.ldy = g.ldy;
  p.limit = g.limit;
  p.rows = static_cast<int32_t>(g.x_rows);
  p.n = static_cast<int32_t>(w.n);
  p.k = static_cast<int32_t>(w.k);
  p.groups = g.groups;
  p.row_tiles = static_cast<int32_t>(divide_up(w.n, Layout::kOutputs));
  p.n_per_column_group = static_cast<int32_t>(g.n_per_column_group);

  const auto kernel = grouped_kernel<kKind, kEpilogue, kTokens>;
  static const bool allowed = [&] {
    MDI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kTotal));
    return true;
  }();
  static_cast<void>(allowed);
  int64_t blocks = context.multiprocessors * Layout::Shape::kBlocks;
  if (g.row_begin == nullptr) blocks = std::min(blocks, divide_up(g.x_rows, kTokens) * p.row_tiles);
  kernel<<<static_cast<unsigned>(blocks), Layout::Shape::kThreads, Layout::kTotal, context.stream>>>(p);
  MDI_CUDA_LAUNCHED(context, "grouped product, groups " + std::to_string(g.groups) + ", rows " +
                                 std::to_string(g.x_rows) + ", n " + std::to_string(w.n) + ", k " +
                                 std::to_string(w.k) + ", tiles of " + std::to_string(kTokens));
}

// A product's launchers, one a width, and what each would cost.
template <WeightKind kKind, Epilogue kEpilogue, int... kTokens>
void launch_cheapest(CudaContext& context, const GroupedProduct& g, std::integer_sequence<int, kTokens...>) {
  struct Choice {
    int width;
    int64_t cost;
    void (*launch)(CudaContext&, const GroupedProduct&);
  };
  const Choice choices[] = {{kTokens, cost_of_width<kKind, kEpilogue, kTokens>(g, context.multiprocessors),
                             launch_width<kKind, kEpilogue, kTokens>}...};
  const Choice* best = choices;
  for (const Choice& c : choices) {
    if (g.width != 0 ? c.width == g.width : c.cost < best->cost) best = &c;
  }
  best->launch(context, g);
}

template <WeightKind kKind, Epilogue kEpilogue>
void launch_grouped(CudaContext& context, const GroupedProduct& g) {
  launch_cheapest<kKind, kEpilogue>(context, g, std::integer_sequence<int, 256, 192, 160, 144, 128, 96, 64, 32, 16>{});
}

}  // namespace mdi::cuda
