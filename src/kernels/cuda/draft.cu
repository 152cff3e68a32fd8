// The draft model's own stages (spec dspark.md 1, 4): products with a norm, window rows alone, the bigram chain.
//
// markov for S sequences: the head's 129,280 x 256 bf16 (66 MB) once, base and logits (0.5 MB a sequence each): 16 us
// at 4,267 GB/s for few sequences.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) gather_kernel(MarkovArgs a, bf16* embedded) {
  const int64_t s = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < a.rank; i += kThreads) {
    embedded[s * a.rank + i] = a.embed[int64_t{a.token[s]} * a.rank + i];
  }
}

__global__ void __launch_bounds__(kThreads) add_base_kernel(MarkovArgs a) {
  const int64_t s = blockIdx.y;
  const int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (v < a.head.n) a.logits[s * a.head.n + v] += a.base[s * a.base_stride + v];
}

// A block a sequence; a fixed tree.
__global__ void __launch_bounds__(kThreads) confidence_kernel(MarkovArgs a, const bf16* embedded) {
  __shared__ float sums[kThreads];
  const int64_t s = blockIdx.x;
  const auto* proj = static_cast<const bf16*>(a.confidence_proj.data);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.dim; i += kThreads) {
    sum = fmaf(widen(a.z[s * a.z_stride + i]), widen(proj[i]), sum);
  }
  for (int i = static_cast<int>(threadIdx.x); i < a.rank; i += kThreads) {
    sum = fmaf(widen(embedded[s * a.rank + i]), widen(proj[a.dim + i]), sum);
  }
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) a.confidence[s] = sums[0];
}

}  // namespace

void linear_norm(Context& base, const StepView& step, const LinearNormArgs& args) {
  CudaContext& context = cuda(base);
  if (step.rows == 0) return;
  linear(context, args.x, step.rows, args.w, args.y, nullptr, args.w.n);
  rms_norm_rows(context, args.y, args.w.n, args.norm, step.rows, args.w.n, args.eps, args.y, args.w.n);
}

void window_rows(Context& base, const StepView& step, const WindowRowsArgs& args) {
  CudaContext& context = cuda(base);
  if (step.rows == 0) return;
  const WorkspaceScope scope(context);
  auto* kv = context.workspace.take<bf16>(step.rows * args.wkv.n, "window rows before their norm");
  linear(context, args.x, step.rows, args.wkv, kv, nullptr, args.wkv.n);
  window_rows(context, args.rope, step.position, step.rows, static_cast<int32_t>(args.wkv.n), kv, args.norm, args.eps,
              args.rows);
}

void markov(Context& base, const MarkovArgs& args) {
  CudaContext& context = cuda(base);
  if (args.sequences == 0) return;
  const WorkspaceScope scope(context);
  auto* embedded = context.workspace.take<bf16>(int64_t{args.sequences} * args.rank, "markov");
  const auto sequences = static_cast<unsigned>(args.sequences);
  gather_kernel<<<sequences, kThreads, 0, context.stream>>>(args, embedded);
  MDI_CUDA_LAUNCHED(context, "markov gather [" + std::to_string(sequences) + "]");
  linear(context, embedded, args.sequences, args.head, nullptr, args.logits, args.head.n);
  const auto blocks = static_cast<unsigned>((args.head.n + kThreads - 1) / kThreads);
  add_base_kernel<<<dim3(blocks, sequences), kThreads, 0, context.stream>>>(args);
  MDI_CUDA_LAUNCHED(context, "markov base [" + std::to_string(sequences) + "]");
  confidence_kernel<<<sequences, kThreads, 0, context.stream>>>(args, embedded);
  MDI_CUDA_LAUNCHED(context, "markov confidence [" + std::to_string(sequences) + "]");
}

}  // namespace mdi::cuda
