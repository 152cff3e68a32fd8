// Host side of grouped_kernel: tile width, stages, tensor maps. Instantiated once per storage (grouped_<storage>.cu),
// so that the builds run in parallel.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cuda/grouped_kernel.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace mdi::cuda {

inline constexpr int64_t kFewRows = 512;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tile costs its width, but no less than the expansion of its weights, plus the epilogue's share. One group: the
// width with the cheapest waves over the multiprocessors; with few rows or split, where most bytes come from the L2, no
// cheaper than those. Many groups of about usual_rows, give or take two square roots: the cheapest tiles.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens, bool kSplit>
int64_t cost_of_width(const GroupedProduct& g, int multiprocessors) {
  constexpr int64_t kTile = 8 * std::max(kTokens, 56) + 128 + kTokens;
  if (g.row_begin == nullptr) {
    using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
    constexpr int64_t kParts = 8;  // the cost of one part is 1 / parts
    const int64_t parts = kSplit && kTokens <= kClusterTokens ? g.parts : 1;
    const int64_t tiles = divide_up(g.x_rows, kTokens) * divide_up(g.weight[0].n, Layout::kOutputs) * parts;
    const int64_t waves = divide_up(tiles, multiprocessors);
    const int64_t sums = waves * Layout::Shape::kRows * kTile * kParts / parts;
    if (g.x_rows > kFewRows && !kSplit) return sums;
    // Bytes of a step of 64 columns against 26 bytes a clock for a multiprocessor when all read, 60 for one; a unit of
    // `sums` is 1 / 256 clock.
    constexpr int64_t kBytes = Layout::kStage / Layout::Shape::kSteps;
    const int64_t shared = tiles * kBytes * 256 / (26 * multiprocessors) * kParts / parts;
    const int64_t alone = waves * kBytes * 256 / 60 * kParts / parts;
    return std::max({sums, shared, alone});
  }
  const auto spread = static_cast<int64_t>(std::sqrt(static_cast<double>(g.usual_rows)));
  int64_t tiles = 0;
  for (int64_t i = -2; i <= 2; ++i) tiles += divide_up(std::max<int64_t>(g.usual_rows + i * spread, 1), kTokens);
  return tiles * kTile;
}

template <WeightKind kKind>
void weight_map(CUtensorMap& map, const LinearWeight& w, int64_t groups, int box_rows, int steps) {
  const int64_t rows = groups * w.n;
  if constexpr (kKind == WeightKind::kBF16) {
    tensor_map(map, w.data, 2, rows, w.k, w.k * 2, box_rows, kStepColumns, BoxSwizzle::k128);
  } else if constexpr (kKind == WeightKind::kE4M3) {
    tensor_map(map, w.data, 1, rows, w.k, w.k, box_rows, kStepColumns, BoxSwizzle::k64);
  } else {
    tensor_map(map, w.data, 1, rows, w.k / 2, w.k / 2, box_rows, steps * kStepColumns / 2,
               steps == 1 ? BoxSwizzle::k32 : BoxSwizzle::k128);
  }
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens, bool kSplit>
void launch_width(CudaContext& context, const GroupedProduct& g) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  const LinearWeight& w = g.weight[0];
  const int64_t column_groups = g.n_per_column_group > 0 ? w.n / g.n_per_column_group : 1;
  GroupedParams p{};
  tensor_map(p.x, g.x, 2, g.x_rows, column_groups * w.k, g.ldx * 2, kTokens, kStepColumns, BoxSwizzle::k128);
  weight_map<kKind>(p.w0, w, g.groups, Layout::kOutputs, Layout::Shape::kSteps);
  p.scale0 = w.scale;
  if constexpr (kEpilogue == Epilogue::kSwiglu) {
    weight_map<kKind>(p.w1, g.weight[1], g.groups, Layout::kOutputs, Layout::Shape::kSteps);
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

  p.parts = static_cast<int32_t>(std::min<int64_t>(g.parts, divide_up(w.k, 256)));

  const auto kernel = grouped_kernel<kKind, kEpilogue, kTokens, kSplit>;
  static const bool allowed = [&] {
    MDI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::total(1)));
    return true;
  }();
  static_cast<void>(allowed);
  constexpr bool kCluster = kSplit && kTokens <= kClusterTokens;
  const int64_t parts = kCluster ? p.parts : 1;
  int64_t blocks = context.multiprocessors * Layout::Shape::kBlocks;
  if (g.row_begin == nullptr) {
    const int64_t tiles = divide_up(g.x_rows, kTokens) * p.row_tiles * parts;
    blocks = kCluster ? tiles : std::min(blocks, tiles);
  }
  const int sharing = blocks <= context.multiprocessors ? 1 : Layout::Shape::kBlocks;
  p.stages = Layout::stages(sharing);
  launch_early(context, kernel, static_cast<unsigned>(blocks), Layout::Shape::kThreads,
               static_cast<size_t>(Layout::total(sharing)), kCluster ? static_cast<unsigned>(parts) : 1u, p);
  MDI_CUDA_LAUNCHED(context, "grouped product, groups " + std::to_string(g.groups) + ", rows " +
                                 std::to_string(g.x_rows) + ", n " + std::to_string(w.n) + ", k " +
                                 std::to_string(w.k) + ", tiles of " + std::to_string(kTokens));
}

// A product's launchers, one a width, and what each would cost.
template <WeightKind kKind, Epilogue kEpilogue, bool kSplit, int... kTokens>
void launch_cheapest(CudaContext& context, const GroupedProduct& g, std::integer_sequence<int, kTokens...>) {
  struct Choice {
    int width;
    int64_t cost;
    void (*launch)(CudaContext&, const GroupedProduct&);
  };
  const Choice choices[] = {{kTokens, cost_of_width<kKind, kEpilogue, kTokens, kSplit>(g, context.multiprocessors),
                             launch_width<kKind, kEpilogue, kTokens, kSplit>}...};
  const Choice* best = choices;
  for (const Choice& c : choices) {
    if (g.width != 0 ? c.width == g.width : c.cost < best->cost) best = &c;
  }
  best->launch(context, g);
}

// Sums of parts take registers: the widest tiles are for products that are not split.
template <WeightKind kKind, Epilogue kEpilogue, bool kSplit>
void launch_grouped(CudaContext& context, const GroupedProduct& g) {
  if constexpr (kSplit) {
    using Widths = std::integer_sequence<int, 144, 128, 96, 64, 32, 16>;
    launch_cheapest<kKind, kEpilogue, kSplit>(context, g, Widths{});
  } else if constexpr (kKind == WeightKind::kE2M1) {
    using Widths = std::integer_sequence<int, 256, 192, 160, 144, 128, 96, 64, 32, 24, 16>;
    launch_cheapest<kKind, kEpilogue, kSplit>(context, g, Widths{});
  } else {
    using Widths = std::integer_sequence<int, 256, 192, 160, 144, 128, 96, 64, 32, 16>;
    launch_cheapest<kKind, kEpilogue, kSplit>(context, g, Widths{});
  }
}

}  // namespace mdi::cuda
