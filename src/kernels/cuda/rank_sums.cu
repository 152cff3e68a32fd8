// Adds the ranks' partial sums (rank_sums.h): (ranks + 1) * 4 bytes a value, bound by memory.
#include "kernels/cuda/rank_sums.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    add_rank_sums_kernel(const float4* partial, int ranks, int64_t n, float4* sum) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  float4 total = partial[i];
  for (int r = 1; r < ranks; ++r) {
    const float4 v = partial[r * n + i];
    total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
  }
  sum[i] = total;
}

}  // namespace

void add_rank_sums(CudaContext& context, const float* partial, int ranks, int64_t n, float* sum) {
  if (n == 0) return;
  const int64_t items = n / 4;
  add_rank_sums_kernel<<<static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(
      reinterpret_cast<const float4*>(partial), ranks, items, reinterpret_cast<float4*>(sum));
  MDI_CUDA_LAUNCHED(context, "add_rank_sums [" + std::to_string(ranks) + ", " + std::to_string(n) + "]");
}

}  // namespace mdi::cuda
