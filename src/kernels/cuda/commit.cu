// What a commit copies (ops.h): accepted window rows into their rings, the row of an odd tail into its slot. Small
// copies: a block or a few a sequence.
#include "kernels/cuda/context.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 16;  // of a sequence

// kUnit: bytes a thread copies, 16 where rows and rings are aligned so.
template <class Unit>
__global__ void __launch_bounds__(kThreads) commit_ring_kernel(StepView step, CommitRingArgs a, int64_t row_bytes) {
  const int s = static_cast<int>(blockIdx.x);
  const int32_t accepted = a.accepted[s];
  const int32_t first = max(0, accepted - a.ring.window);
  const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
  std::byte* ring = a.ring.base + step.seq_slot[s] * a.ring.slot_stride;
  const std::byte* rows = a.window_rows + step.seq_row[s] * row_bytes;
  const int64_t total = (accepted - first) * units;
  for (int64_t at = int64_t{blockIdx.y} * kThreads + threadIdx.x; at < total; at += int64_t{gridDim.y} * kThreads) {
    const int64_t i = first + at / units;
    const int64_t position = step.seq_start[s] + i;
    const auto* from = reinterpret_cast<const Unit*>(rows + i * row_bytes);
    auto* to = reinterpret_cast<Unit*>(ring + position % a.ring.window * row_bytes);
    to[at % units] = from[at % units];
  }
}

__global__ void __launch_bounds__(kThreads) commit_pending_kernel(StepView step, CommitPendingArgs a) {
  const int s = static_cast<int>(blockIdx.x);
  const int32_t accepted = a.accepted[s];
  if (accepted == 0 || (step.seq_start[s] + accepted) % 2 == 0) return;
  const int64_t width = int64_t{2} * a.head_dim;
  const float* from = a.step_pending + (step.seq_row[s] + accepted - 1) * width;
  float* to = a.pending + step.seq_slot[s] * a.pending_stride;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = from[i];
}

bool multiple_of_16(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && bytes % 16 == 0;
}

}  // namespace

void commit_ring(Context& base, const StepView& step, const CommitRingArgs& args) {
  CudaContext& context = cuda(base);
  if (step.sequences == 0) return;
  const int64_t bytes = args.ring.row.bytes();
  const bool wide = multiple_of_16(args.ring.base, bytes) && multiple_of_16(args.window_rows, args.ring.slot_stride);
  const auto kernel = wide ? commit_ring_kernel<uint4> : commit_ring_kernel<uint8_t>;
  kernel<<<dim3(static_cast<unsigned>(step.sequences), kBlocks), kThreads, 0, context.stream>>>(step, args, bytes);
  MDI_CUDA_LAUNCHED(context, "commit_ring [" + std::to_string(step.sequences) + "]");
}

void commit_pending(Context& base, const StepView& step, const CommitPendingArgs& args) {
  CudaContext& context = cuda(base);
  if (step.sequences == 0) return;
  commit_pending_kernel<<<static_cast<unsigned>(step.sequences), kThreads, 0, context.stream>>>(step, args);
  MDI_CUDA_LAUNCHED(context, "commit_pending [" + std::to_string(step.sequences) + "]");
}

}  // namespace mdi::cuda
