// When kernels get onto the device. The runtime's default is a kernel's first launch, which then allocates and takes
// milliseconds in the middle of a request; here it is the start, before anything is served.
#pragma once

namespace mdi::cuda {

// Before the process's first call of the runtime: later it has no effect. A setting of the environment
// (CUDA_MODULE_LOADING) is left alone.
void load_kernels_at_start();

// Whether the driver works so.
bool kernels_load_at_start();

}  // namespace mdi::cuda
