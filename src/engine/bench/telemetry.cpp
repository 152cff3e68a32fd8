#include "engine/bench/telemetry.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>

namespace mdi::bench {

namespace {

// The few functions that are used, as nvml.h declares them; 0 is success, clock 1 is the multiprocessors'.
using Init = int (*)();
using GetHandle = int (*)(unsigned, void**);
using GetClock = int (*)(void*, int, unsigned*);
using GetPower = int (*)(void*, unsigned*);
constexpr int kSmClock = 1;

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

}  // namespace

TelemetrySampler::TelemetrySampler() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto init = find<Init>(library_, "nvmlInit_v2");
  const auto handle = find<GetHandle>(library_, "nvmlDeviceGetHandleByIndex_v2");
  const auto clock = find<GetClock>(library_, "nvmlDeviceGetClockInfo");
  const auto power = find<GetPower>(library_, "nvmlDeviceGetPowerUsage");
  if (init == nullptr || handle == nullptr || clock == nullptr || power == nullptr) return;
  if (init() != 0 || handle(0, &device_) != 0) return;
  running_ = true;
  thread_ = std::thread([this, clock, power] {
    while (running_) {
      unsigned mhz = 0, milliwatts = 0;
      if (clock(device_, kSmClock, &mhz) == 0) mhz_.push_back(mhz);
      if (power(device_, &milliwatts) == 0) watts_.push_back(milliwatts * 1e-3);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

TelemetrySampler::~TelemetrySampler() {
  stop();
  if (library_ == nullptr) return;
  if (const auto shutdown = find<Init>(library_, "nvmlShutdown"); shutdown != nullptr && device_ != nullptr) shutdown();
  dlclose(library_);
}

Telemetry TelemetrySampler::stop() {
  running_ = false;
  if (thread_.joinable()) thread_.join();
  Telemetry t{.sm_mhz = median(mhz_), .watts = median(watts_), .samples = static_cast<int>(mhz_.size())};
  if (device_ != nullptr) {
    unsigned limit = 0;
    const auto get = find<GetPower>(library_, "nvmlDeviceGetEnforcedPowerLimit");
    if (get != nullptr && get(device_, &limit) == 0) t.watts_limit = limit * 1e-3;
  }
  return t;
}

}  // namespace mdi::bench
