#include "kernels/cuda/context.h"

#include <cstdlib>

namespace mdi {

CudaContext::CudaContext(int device_index, int64_t workspace_bytes) : device(device_index) {
  synchronous = std::getenv("MDI_CUDA_SYNC") != nullptr;
  MDI_CUDA(cudaSetDevice(device));
  MDI_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  MDI_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  workspace.size = workspace_bytes;
  if (workspace_bytes > 0)
    MDI_CUDA(cudaMalloc(reinterpret_cast<void**>(&workspace.base), static_cast<size_t>(workspace_bytes)));
}

CudaContext::~CudaContext() {
  // A destructor has nobody to report to; the process is done with the device.
  cudaFree(workspace.base);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

namespace cuda {

void launched(CudaContext& context, const std::string& what, const char* file, int line) {
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess && context.synchronous) status = cudaStreamSynchronize(context.stream);
  if (status != cudaSuccess) fail(status, what, file, line);
}

}  // namespace cuda
}  // namespace mdi
