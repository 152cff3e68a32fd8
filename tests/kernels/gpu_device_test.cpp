// What is said of a GPU that cannot be used, without one.
#include "kernels/gpu_device.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace mdi {
namespace {

std::string refusal(int device, const GpuFacts& facts) {
  try {
    check_gpu(device, facts);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(GpuDevice, TheRightOnePasses) {
  EXPECT_EQ(refusal(0, {.count = 1, .driver_error = "", .name = "NVIDIA H200", .major = 9, .minor = 0}), "");
}

TEST(GpuDevice, NoneSaysWhatTheDriverSays) {
  EXPECT_EQ(refusal(0, {}), "GPU 0: expected a GPU that the driver offers, found none");
  EXPECT_EQ(refusal(0, {.count = 0, .driver_error = "no CUDA-capable device is detected", .name = ""}),
            "GPU 0: expected a GPU that the driver offers, found none (no CUDA-capable device is detected)");
}

TEST(GpuDevice, ANumberThatIsNotThere) {
  const GpuFacts two{.count = 2, .driver_error = "", .name = "NVIDIA H200", .major = 9, .minor = 0};
  EXPECT_EQ(refusal(2, two), "GPU 2: expected a number below 2, the GPUs that the driver offers");
  EXPECT_EQ(refusal(-1, two), "GPU -1: expected a number below 2, the GPUs that the driver offers");
}

TEST(GpuDevice, AnotherArchitectureIsNamed) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    const GpuFacts facts{.count = 1, .driver_error = "", .name = "Some Card", .major = major, .minor = minor};
    EXPECT_EQ(refusal(0, facts), "GPU 0: expected compute capability 9.0 (H100, H200), found Some Card with " +
                                     std::to_string(major) + "." + std::to_string(minor));
  }
}

}  // namespace
}  // namespace mdi
