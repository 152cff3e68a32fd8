#include "kernels/gpu_device.h"

#include "core/error.h"

namespace mdi {

void check_gpu(int device, const GpuFacts& facts) {
  const std::string where = "GPU " + std::to_string(device);
  if (facts.count <= 0) {
    throw Error(where, "expected a GPU that the driver offers, found none" +
                           (facts.driver_error.empty() ? "" : " (" + facts.driver_error + ")"));
  }
  if (device < 0 || device >= facts.count) {
    throw Error(where, "expected a number below " + std::to_string(facts.count) + ", the GPUs that the driver offers");
  }
  // sm_90a code runs on 9.0 alone: the 'a' features are of one generation.
  if (facts.major != 9 || facts.minor != 0) {
    throw Error(where, "expected compute capability 9.0 (H100, H200), found " + facts.name + " with " +
                           std::to_string(facts.major) + "." + std::to_string(facts.minor));
  }
}

}  // namespace mdi
