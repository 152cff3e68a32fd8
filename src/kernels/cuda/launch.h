// Launches whose blocks may take their places while the work before is ending: a step of few rows is a thousand kernels
// of a few microseconds, and between two of them the device is empty for about one.
//
// A kernel launched so must call ptx::wait_for_earlier() before it reads or writes anything that earlier kernels of the
// stream made or use; weights, tables and the step's own arrays are there before. By ptx::let_next_start() it lets its
// own successor take its place; that one waits for this kernel's end as well. Kernels launched in the ordinary way need
// neither.
#pragma once

#include <utility>

#include "kernels/cuda/context.h"

namespace mdi::cuda {

// cluster: blocks of a cluster, 1: none.
template <class... Parameters, class... Arguments>
void launch_early(CudaContext& context, void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared,
                  unsigned cluster, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  // Not cudaLaunchKernelEx: it passes parameters by value once more, and the host compiler does not align those of 64
  // bytes' alignment (tensor maps) there.
  [&](const Parameters&... exact) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&exact))...};
    MDI_CUDA(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers));
  }(std::forward<Arguments>(arguments)...);
}

}  // namespace mdi::cuda
