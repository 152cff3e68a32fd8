// Clock and power of the GPU while something runs, from the driver's management library.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace mdi::bench {

struct Telemetry {
  double sm_mhz = 0, watts = 0, watts_limit = 0;  // medians of the samples; 0: not known
  int samples = 0;
};

// Samples every 20 ms from construction until stop(). Where the library (libnvidia-ml.so.1) is missing there are no
// samples; nothing else changes. The driver reports power as an average over some time.
class TelemetrySampler {
 public:
  TelemetrySampler();
  ~TelemetrySampler();
  TelemetrySampler(const TelemetrySampler&) = delete;
  TelemetrySampler& operator=(const TelemetrySampler&) = delete;
  Telemetry stop();

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
  std::vector<double> mhz_, watts_;
  std::atomic<bool> running_{false};
  std::thread thread_;
};

}  // namespace mdi::bench
