// The hyper-connection stages for any number of copies and channels: collapse_rows (the head's, and any shape's), and
// hc_collapse for shapes that hc_collapse.cu does not take, in the oracle's order of sums. A block a row; no limit
// worth naming is reached.
#include "kernels/cuda/exact_math.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/hc.h"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxCopies = 8;
constexpr int kMaxMixes = (2 + kMaxCopies) * kMaxCopies;

__device__ float collapsed(const bf16* h, const float* pre, int32_t hc, int64_t dim, int64_t d) {
  float sum = 0;
  for (int c = 0; c < hc; ++c) sum = __fadd_rn(sum, __fmul_rn(pre[c], widen(h[c * dim + d])));
  return sum;
}

struct CollapseRows {
  const int32_t* rows;
  int32_t hc, dim;
  const bf16* h;
  const float* pre;
  bf16 *x, *z;
};

__global__ void __launch_bounds__(kThreads) collapse_rows_kernel(CollapseRows a) {
  const int64_t i = blockIdx.x;
  const int64_t row = a.rows != nullptr ? a.rows[i] : i;
  const bf16* h = a.h + row * a.hc * a.dim;
  for (int d = static_cast<int>(threadIdx.x); d < a.dim; d += kThreads) {
    const bf16 v = narrow(collapsed(h, a.pre + row * a.hc, a.hc, a.dim, d));
    a.x[i * a.dim + d] = v;
    if (a.z != nullptr) a.z[i * a.dim + d] = v;
  }
}

__device__ float sigmoid(float v) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_rounded(-v))); }
__device__ float scaled(float mix, float scale, float base) { return __fadd_rn(__fmul_rn(mix, scale), base); }

// 5.3 on one thread, step by step as the oracle does it.
__device__ void split_mixes(const float* mixes, const HcCollapseArgs& a, int64_t row) {
  const int hc = a.hc;
  float* comb = a.comb + row * hc * hc;
  for (int j = 0; j < hc; ++j) {
    a.pre_out[row * hc + j] = __fadd_rn(sigmoid(scaled(mixes[j], a.weights.scale[0], a.weights.base[j])), a.eps);
    a.post[row * hc + j] = 2.0f * sigmoid(scaled(mixes[hc + j], a.weights.scale[1], a.weights.base[hc + j]));
  }
  for (int i = 0; i < hc; ++i) {
    float largest = -INFINITY, sum = 0;
    for (int k = 0; k < hc; ++k) {
      const int at = 2 * hc + i * hc + k;
      comb[i * hc + k] = scaled(mixes[at], a.weights.scale[2], a.weights.base[at]);
      largest = fmaxf(largest, comb[i * hc + k]);
    }
    for (int k = 0; k < hc; ++k) sum += comb[i * hc + k] = exp_rounded(comb[i * hc + k] - largest);
    for (int k = 0; k < hc; ++k) comb[i * hc + k] = __fdiv_rn(comb[i * hc + k], sum) + a.eps;
  }
  for (int n = 0; n < 2 * a.sinkhorn_iters - 1; ++n) {
    const int along = n % 2 == 0 ? 1 : hc, across = n % 2 == 0 ? hc : 1;  // columns first, and last
    for (int line = 0; line < hc; ++line) {
      float sum = 0;
      for (int i = 0; i < hc; ++i) sum += comb[line * along + i * across];
      for (int i = 0; i < hc; ++i)
        comb[line * along + i * across] = __fdiv_rn(comb[line * along + i * across], sum + a.eps);
    }
  }
}

__global__ void __launch_bounds__(kThreads) hc_mixes_kernel(HcCollapseArgs a) {
  __shared__ float mixes[kMaxMixes + 1];
  const int64_t row = blockIdx.x;
  const int64_t width = int64_t{a.hc} * a.dim;
  const bf16* h = a.h + row * width;
  const int count = (2 + a.hc) * a.hc;
  const int m = static_cast<int>(threadIdx.x);
  if (m / 32 == kThreads / 32 - 1) {
    const float sum = sum_of_16_lanes(width, [h](int64_t i) { return __fmul_rn(widen(h[i]), widen(h[i])); });
    if (m % 32 == 0) mixes[count] = sum;
  } else if (m < count) {
    float sum = 0;  // one chain, as in plain_product
    for (int64_t i = 0; i < width; ++i) sum = __fmaf_rn(widen(h[i]), a.weights.fn[m * width + i], sum);
    mixes[m] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const float r = inverse_rms(mixes[count], width, a.norm_eps);
  for (int m = 0; m < count; ++m) mixes[m] *= r;
  split_mixes(mixes, a, row);
}

}  // namespace

void collapse_rows(CudaContext& context, const int32_t* rows, int64_t count, int32_t hc, int32_t dim, const bf16* h,
                   const float* pre, bf16* x, bf16* z) {
  if (count == 0) return;
  collapse_rows_kernel<<<static_cast<unsigned>(count), kThreads, 0, context.stream>>>({rows, hc, dim, h, pre, x, z});
  MDI_CUDA_LAUNCHED(context, "collapse_rows [" + std::to_string(count) + "]");
}

void hc_collapse_plain(CudaContext& context, int64_t rows, const HcCollapseArgs& args) {
  if (args.hc > kMaxCopies) throw Error("cuda hc_collapse", "more than 8 copies: " + std::to_string(args.hc));
  collapse_rows(context, nullptr, rows, args.hc, args.dim, args.h, args.pre_in, args.x, nullptr);
  rms_norm_rows(context, args.x, args.dim, args.norm, rows, args.dim, args.norm_eps, args.x, args.dim);
  hc_mixes_kernel<<<static_cast<unsigned>(rows), kThreads, 0, context.stream>>>(args);
  MDI_CUDA_LAUNCHED(context, "hc_mixes [" + std::to_string(rows) + "]");
}

}  // namespace mdi::cuda
