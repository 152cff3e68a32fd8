// Errors of the CUDA runtime as mdi::Error: the call or kernel, its shape, the file and line.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/error.h"

namespace mdi::cuda {

[[noreturn]] inline void fail(cudaError_t status, const std::string& what, const char* file, int line) {
  throw Error("cuda", what + " (" + file + ":" + std::to_string(line) + "): " + cudaGetErrorString(status));
}

}  // namespace mdi::cuda

#define MDI_CUDA(call)                                                                       \
  do {                                                                                       \
    const cudaError_t mdi_status = (call);                                                   \
    if (mdi_status != cudaSuccess) ::mdi::cuda::fail(mdi_status, #call, __FILE__, __LINE__); \
  } while (false)

// After a launch: `what` names the kernel and its shape. Kernels run asynchronously, so an error inside one shows at a
// later call; with MDI_CUDA_SYNC set in the environment every launch is waited for and the error is its own.
#define MDI_CUDA_LAUNCHED(context, what) ::mdi::cuda::launched((context), (what), __FILE__, __LINE__)
