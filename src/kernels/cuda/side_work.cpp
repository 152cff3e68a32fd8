#include "kernels/cuda/side_work.h"

#include <map>

namespace mdi::cuda {

namespace {

struct Side {
  cudaStream_t stream = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
};

// A thread's calls come one after the other, so its contexts on a device can share one; it lives as long as the thread.
Side& side_of(int device) {
  thread_local std::map<int, Side> sides;
  Side& side = sides[device];
  if (side.stream == nullptr) {
    MDI_CUDA(cudaEventCreateWithFlags(&side.forked, cudaEventDisableTiming));
    MDI_CUDA(cudaEventCreateWithFlags(&side.joined, cudaEventDisableTiming));
    MDI_CUDA(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking));
  }
  return side;
}

}  // namespace

SideWork::SideWork(CudaContext& context) : context_(context), first_(context.stream) {
  const Side& side = side_of(context.device);
  MDI_CUDA(cudaEventRecord(side.forked, first_));
  MDI_CUDA(cudaStreamWaitEvent(side.stream, side.forked, 0));
  context.stream = side.stream;
}

void SideWork::join() {
  back();
  join_side_work(context_);
}

void join_side_work(CudaContext& context) {
  const Side& side = side_of(context.device);
  MDI_CUDA(cudaEventRecord(side.joined, side.stream));
  MDI_CUDA(cudaStreamWaitEvent(context.stream, side.joined, 0));
}

}  // namespace mdi::cuda
