// Expert choice (spec 7): the gate's product, then the selection.
//
// Selection: a block a row. Its four warps make the scores, whose exact exponentials are most of the time when rows are
// few; then one warp takes the chosen ones one by one, 12 experts a lane, each a search of the lane's best and a tree
// over the warp.
#include "kernels/cuda/exact_math.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = 16;
constexpr int kMaxExperts = 32 * kMaxPerLane;

struct Select {
  const uint8_t* dead;
  RouteArgs args;
  const float* z;  // [rows, experts]
  float* biased;   // [rows, experts] for the tap, or null
};

__device__ float gate_score(float z, float temperature) {
  const float v = __fdiv_rn(z, temperature);
  return __fsqrt_rn(v > 20.0f ? v : log1p_exact(exp_rounded(v)));
}

__global__ void __launch_bounds__(kWarps * 32) route_select_kernel(Select a) {
  __shared__ float scores[kMaxExperts];
  const int lane = threadIdx.x % 32;
  const int64_t row = blockIdx.x;
  ptx::let_next_start();
  ptx::wait_for_earlier();
  const RouteArgs& args = a.args;
  const float* bias = a.dead[row] != 0 && args.bias_vl != nullptr ? args.bias_vl : args.bias;
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kWarps * 32) {
    scores[e] = gate_score(a.z[row * args.experts + e], args.gate_temp);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float score[kMaxPerLane], biased[kMaxPerLane];
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] = 0;
    biased[i] = -INFINITY;
    if (e >= args.experts) continue;
    score[i] = scores[e];
    biased[i] = score[i] + bias[e];
    if (a.biased != nullptr) a.biased[row * args.experts + e] = biased[i];
    if (isnan(biased[i])) biased[i] = -INFINITY;  // any order will do, but an expert is chosen once
  }
  uint32_t chosen = 0;  // of this lane's experts
  float weight = 0, sum = 0;
  for (int n = 0; n < args.topk; ++n) {
    int best = INT32_MAX;
    float value = -INFINITY, best_score = 0;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e >= args.experts || (chosen >> i & 1u) != 0) continue;
      if (best == INT32_MAX || biased[i] > value) {
        best = e;
        value = biased[i];
        best_score = score[i];
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
      const float other_score = __shfl_xor_sync(0xFFFFFFFFu, best_score, step);
      const int other_best = __shfl_xor_sync(0xFFFFFFFFu, best, step);
      if (other > value || (other == value && other_best < best)) {
        value = other;
        best_score = other_score;
        best = other_best;
      }
    }
    if (best % 32 == lane) chosen |= 1u << (best / 32);
    if (lane == n) {
      args.index[row * args.topk + n] = best;
      weight = best_score;
    }
    sum = __fadd_rn(sum, best_score);
  }
  if (lane < args.topk) {
    args.weight[row * args.topk + lane] = __fmul_rn(__fdiv_rn(weight, __fadd_rn(sum, 1e-20f)), args.route_scale);
  }
}

}  // namespace

void route(Context& base, const StepView& step, const RouteArgs& args) {
  CudaContext& context = cuda(base);
  if (args.experts > kMaxExperts || args.topk > 32 || args.topk > args.experts) {
    throw Error("cuda route", "cannot choose " + std::to_string(args.topk) + " of " + std::to_string(args.experts) +
                                  " experts: at most 32 of 512");
  }
  const WorkspaceScope scope(context);
  const int64_t count = int64_t{step.rows} * args.experts;
  auto* z = context.workspace.take<float>(count, "gate products");
  float* biased = context.tap ? context.workspace.take<float>(count, "gate scores") : nullptr;
  if (step.rows > 0) {
    linear(context, args.x, step.rows, args.gate, nullptr, z, args.experts);
    launch_early(context, route_select_kernel, static_cast<unsigned>(step.rows), kWarps * 32, 0, 1,
                 Select{step.dead, args, z, biased});
    MDI_CUDA_LAUNCHED(context, "route [" + std::to_string(step.rows) + ", " + std::to_string(args.experts) + "]");
  }
  tap(context, "gate_scores_biased", DType::kF32, biased, {step.rows, args.experts});
}

}  // namespace mdi::cuda
