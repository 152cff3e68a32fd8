// Work beside the context's stream, for small products that leave most of the device idle.
#pragma once

#include "kernels/cuda/context.h"

namespace mdi::cuda {

// From its construction to back(), what is launched on the context runs on a second stream, behind what the first had
// until then. join() makes the context's stream wait for it; nothing that this work reads or writes may change before,
// workspace included. A capture of the context's stream takes both streams in.
class SideWork {
 public:
  explicit SideWork(CudaContext& context);
  ~SideWork() { back(); }
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  void back() { context_.stream = first_; }
  void join();

 private:
  CudaContext& context_;
  cudaStream_t first_;
};

// join() of the work that ended last, for whoever did not keep it.
void join_side_work(CudaContext& context);

}  // namespace mdi::cuda
