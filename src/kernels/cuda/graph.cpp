#include "kernels/cuda/graph.h"

namespace mdi::cuda {

void* record_graph(Context& base, const std::function<void()>& work) {
  CudaContext& context = cuda(base);
  cudaGraph_t graph = nullptr;
  MDI_CUDA(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal));
  context.capturing = true;
  try {
    work();
  } catch (...) {
    // The stream must leave its capture whatever became of it; the first error is the one that counts.
    context.capturing = false;
    if (cudaStreamEndCapture(context.stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  context.capturing = false;
  MDI_CUDA(cudaStreamEndCapture(context.stream, &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  MDI_CUDA(status);
  MDI_CUDA(cudaGraphUpload(exec, context.stream));
  return exec;
}

void launch_graph(Context& base, void* recorded) {
  CudaContext& context = cuda(base);
  MDI_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recorded), context.stream));
  MDI_CUDA_LAUNCHED(context, "graph");
}

void release_graph(Context& base, void* recorded) {
  if (recorded == nullptr) return;
  cudaStreamSynchronize(cuda(base).stream);
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recorded));
}

}  // namespace mdi::cuda
