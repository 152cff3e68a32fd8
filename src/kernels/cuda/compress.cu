// The softmax over the two tokens of a pair, per channel (spec 6.5): l = w0 a0 + w1 a1 in fp32, rounded once.
//
// A thread a channel of a row; rows that complete no pair become zero, which nothing reads. 4,096 rows: 17 MB read and
// 4 MB written.
#include <cmath>

#include "kernels/cuda/compress.h"
#include "kernels/cuda/formats.cuh"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 128;

// Rounded from double: equal to the C library's expf but for its own last bit in rare cases.
__device__ inline float exponential(float x) {
  return x == 0.0f ? 1.0f : static_cast<float>(exp(static_cast<double>(x)));
}

__global__ void __launch_bounds__(kThreads) compress_pairs_kernel(StepView step, CompressArgs a, bf16* latent) {
  const int64_t t = blockIdx.x;
  const int64_t dim = a.cache.layout.head_dim, width = 2 * dim;
  const bool completes = (step.position[t] + 1) % 2 == 0;
  const int32_t s = step.seq_of_row[t];
  const float* later = a.step_pending + t * width;
  const float* earlier = t > step.seq_row[s] ? later - width : a.pending + step.seq_slot[s] * a.pending_stride;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    if (!completes) {
      latent[t * dim + i] = bf16{0};
      continue;
    }
    const float g0 = earlier[dim + i], g1 = later[dim + i];
    const float largest = g0 < g1 ? g1 : g0;
    const float e0 = exponential(__fsub_rn(g0, largest)), e1 = exponential(__fsub_rn(g1, largest));
    const float sum = __fadd_rn(e0, e1);
    latent[t * dim + i] =
        narrow(__fadd_rn(__fmul_rn(__fdiv_rn(e0, sum), earlier[i]), __fmul_rn(__fdiv_rn(e1, sum), later[i])));
  }
}

}  // namespace

void compress_pairs(CudaContext& context, const StepView& step, const CompressArgs& args, bf16* latent) {
  if (step.rows == 0) return;
  compress_pairs_kernel<<<static_cast<unsigned>(step.rows), kThreads, 0, context.stream>>>(step, args, latent);
  MDI_CUDA_LAUNCHED(context, "compress pairs [" + std::to_string(step.rows) + "]");
}

}  // namespace mdi::cuda
