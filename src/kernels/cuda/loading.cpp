#include "kernels/cuda/loading.h"

#include <cuda.h>

#include <cstdlib>

#include "kernels/cuda/cuda_error.h"

namespace mdi::cuda {

void load_kernels_at_start() { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

bool kernels_load_at_start() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  MDI_CUDA(cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &function, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) return false;
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  return reinterpret_cast<decltype(&cuModuleGetLoadingMode)>(function)(&mode) == CUDA_SUCCESS &&
         mode == CU_MODULE_EAGER_LOADING;
}

}  // namespace mdi::cuda
