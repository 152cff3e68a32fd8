// Whether the CUDA backend can use a GPU, decided from what the driver says of it. There is no CUDA here: the refusals
// are tested without a GPU, and are said before anything is allocated or loaded.
#pragma once

#include <string>

namespace mdi {

struct GpuFacts {
  int count = 0;             // GPUs that the driver offers
  std::string driver_error;  // why it offers none, where it says so
  std::string name;          // of the one that is asked for, like its compute capability
  int major = 0, minor = 0;
};

// Throws mdi::Error when there is no GPU, no such GPU, or its kernels are not built (anything but 9.0).
void check_gpu(int device, const GpuFacts& facts);

}  // namespace mdi
