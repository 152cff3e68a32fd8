#include "kernels/cuda/context.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/loading.h"

namespace mdi {

CudaContext::CudaContext(int device_index, int64_t workspace_bytes) : device(device_index) {
  synchronous = std::getenv("MDI_CUDA_SYNC") != nullptr;
  cuda::load_kernels_at_start();
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

namespace {

// A source file's path from the project's root on, wherever it was built.
const char* source_name(const char* file) {
  for (const char* top : {"src/", "tests/"}) {
    const size_t at = std::string_view(file).rfind(top);
    if (at != std::string_view::npos) return file + at;
  }
  return file;
}

}  // namespace

void launched(CudaContext& context, const std::string& what, const char* file, int line) {
  cudaError_t status = cudaGetLastError();
  const bool wait = context.synchronous && !context.capturing;
  if (status == cudaSuccess && wait) status = cudaStreamSynchronize(context.stream);
  if (status != cudaSuccess) fail(status, what, source_name(file), line);
}

void tap(CudaContext& context, std::string_view name, DType dtype, const void* device,
         std::initializer_list<int64_t> shape) {
  if (!context.tap) return;
  TensorView view{.data = nullptr, .dtype = dtype, .rank = static_cast<int>(shape.size()), .shape = {}};
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::vector<std::byte> host(view.bytes());
  if (!host.empty()) {
    MDI_CUDA(cudaMemcpyAsync(host.data(), device, host.size(), cudaMemcpyDeviceToHost, context.stream));
    MDI_CUDA(cudaStreamSynchronize(context.stream));
  }
  view.data = host.data();
  context.tap(name, context.layer, view);
}

}  // namespace cuda
}  // namespace mdi
