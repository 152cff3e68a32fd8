// The product for shapes that the tensor copy engine cannot address (tiny models) and for fp32 weights: a warp computes
// 32 neighbouring outputs of a row, a thread one of them, over K in ascending order with fused multiply-adds. Nothing
// here is fast: a model that is timed has no such shapes.
#include <algorithm>
#include <string>

#include "kernels/cuda/exact_math.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/weight_fragments.cuh"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 8;

struct PlainParams {
  GroupedProduct g;
  int64_t blocks_of_32;
};

__device__ float weight_value(const LinearWeight& w, int64_t group, int64_t n, int64_t k) {
  const int64_t at = (group * w.n + n) * w.k + k, blocks = (w.k + 31) / 32;
  switch (w.kind) {
    case WeightKind::kE4M3: {
      const int64_t line = group * ((w.n + 31) / 32) + n / 32;
      return e4m3_float(static_cast<const e4m3*>(w.data)[at]) * e8m0_value(w.scale[line * blocks + k / 32].bits);
    }
    case WeightKind::kE2M1: {
      const int64_t line = group * w.n + n;
      const uint32_t byte = static_cast<const uint8_t*>(w.data)[line * (w.k / 2) + k / 2];
      return e2m1_value(k % 2 == 0 ? byte & 15u : byte >> 4) * e8m0_value(w.scale[line * blocks + k / 32].bits);
    }
    case WeightKind::kBF16:
      return widen(static_cast<const bf16*>(w.data)[at]);
    default:
      return static_cast<const float*>(w.data)[at];
  }
}

__device__ float dot(const LinearWeight& w, int64_t group, int64_t n, const bf16* x) {
  float sum = 0;
  for (int64_t k = 0; k < w.k; ++k) sum = __fmaf_rn(widen(x[k]), weight_value(w, group, n, k), sum);
  return sum;
}

__device__ void write(const GroupedProduct& g, int64_t group, int64_t row, int64_t n, bool exists) {
  const LinearWeight& w = g.weight[0];
  const int64_t column = g.n_per_column_group > 0 ? n / g.n_per_column_group * w.k : 0;
  const bf16* x = g.x + row * g.ldx + column;
  const float product = exists ? dot(w, group, n, x) : 0.0f;
  const int64_t at = row * g.ldy + n;
  if (g.epilogue == Epilogue::kSwiglu) {
    const float gate = rounded(product), up = exists ? rounded(dot(g.weight[1], group, n, x)) : 0.0f;
    const float low = g.limit < gate ? g.limit : gate;
    const float u = up < -g.limit ? -g.limit : g.limit < up ? g.limit : up;
    const float weight = g.row_weight != nullptr ? g.row_weight[row] : 1.0f;
    const uint32_t t = narrow(weight * (__fdiv_rn(low, 1.0f + exp_rounded(-low)) * u)).bits;
    const uint32_t scale = scale_byte(group_max(exists ? t & 0x7FFFu : 0u, 32), kActFloor, kInverse448);
    if (exists) g.y[at] = {static_cast<uint16_t>(act_quantised(t, scale))};
  } else if (exists) {
    if (g.epilogue == Epilogue::kF32) g.y_f32[at] = product;
    if (g.epilogue == Epilogue::kBF16) g.y[at] = narrow(product);
    if (g.epilogue == Epilogue::kAdd) g.y[at] = narrow(g.sum[at] + rounded(product));
  }
}

__global__ void __launch_bounds__(32 * kWarps) plain_kernel(PlainParams p) {
  const int64_t rows = p.g.row_begin != nullptr ? p.g.row_begin[p.g.groups] : p.g.x_rows;
  const int64_t n = p.g.weight[0].n;
  for (int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; item < rows * p.blocks_of_32;
       item += int64_t{gridDim.x} * kWarps) {
    const int64_t row = item / p.blocks_of_32, column = item % p.blocks_of_32 * 32 + threadIdx.x % 32;
    int64_t group = 0;
    if (p.g.row_begin != nullptr) {
      while (row >= p.g.row_begin[group + 1]) ++group;
    }
    write(p.g, group, row, column, column < n);
  }
}

}  // namespace

void plain_product(CudaContext& context, const GroupedProduct& g) {
  if (g.x_rows == 0) return;
  const PlainParams p{.g = g, .blocks_of_32 = (g.weight[0].n + 31) / 32};
  const int64_t blocks =
      std::min<int64_t>((g.x_rows * p.blocks_of_32 + kWarps - 1) / kWarps, 16 * context.multiprocessors);
  plain_kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, 0, context.stream>>>(p);
  MDI_CUDA_LAUNCHED(context, "plain product, groups " + std::to_string(g.groups) + ", rows " +
                                 std::to_string(g.x_rows) + ", n " + std::to_string(g.weight[0].n) + ", k " +
                                 std::to_string(g.weight[0].k));
}

}  // namespace mdi::cuda
