// The GPU that a context runs on: found, judged (kernels/gpu_device.h), and only then used.
#include <string>

#include "kernels/cuda/context.h"
#include "kernels/cuda/loading.h"
#include "kernels/gpu_device.h"

namespace mdi {

CudaDevice find_cuda_device(int device) {
  cuda::load_kernels_at_start();
  GpuFacts facts;
  const cudaError_t status = cudaGetDeviceCount(&facts.count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    facts.count = 0;
    facts.driver_error = cudaGetErrorString(status);
  }
  cudaDeviceProp properties{};
  if (device >= 0 && device < facts.count) {
    MDI_CUDA(cudaGetDeviceProperties(&properties, device));
    facts.name = properties.name;
    facts.major = properties.major;
    facts.minor = properties.minor;
  }
  check_gpu(device, facts);
  MDI_CUDA(cudaSetDevice(device));
  size_t free = 0, total = 0;
  MDI_CUDA(cudaMemGetInfo(&free, &total));
  return {facts.name, static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

std::unique_ptr<CudaContext> make_cuda_context(int device, int64_t workspace_bytes) {
  const CudaDevice found = find_cuda_device(device);
  if (found.free < workspace_bytes) {
    throw Error("GPU " + std::to_string(device), "expected " + std::to_string(workspace_bytes) +
                                                     " bytes for the workspace, " + std::to_string(found.free) +
                                                     " of " + std::to_string(found.total) + " are free");
  }
  auto context = std::make_unique<CudaContext>(device, workspace_bytes);
  context->ops = &cuda_ops();
  return context;
}

}  // namespace mdi
