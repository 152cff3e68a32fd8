// What the kernel checks share: device arrays with guard bytes, both contexts, comparison, timing and the lines that
// they print. A check program is one area's main(): it runs every check, times kernels with --time, and ends with 1
// when something failed.
//
//   int run(int argc, char** argv) {
//     mdi::check::Harness h("rows", argc, argv);
//     if (h.wants("rms_norm")) { ... h.report("rms_norm", "T=3 n=64", compare(got, want, {...})); }
//     return h.finish();
//   }
//   int main(int argc, char** argv) { return mdi::check::guarded(run, argc, argv); }
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/sustained.h"

namespace mdi::check {

// ---- device arrays --------------------------------------------------------------------------------------------------
// 0xFF in every byte is NaN in fp32, bf16, e4m3 and e8m0, and -1 as an integer.
inline constexpr int kPoison = 0xFF;
inline constexpr int kGuard = 0xA5;
inline constexpr size_t kGuardBytes = 1024;

// `count` elements in device memory between guard bytes; starts poisoned.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) {
    MDI_CUDA(cudaMalloc(reinterpret_cast<void**>(&base_), bytes() + 2 * kGuardBytes));
    MDI_CUDA(cudaMemset(base_, kGuard, bytes() + 2 * kGuardBytes));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  ~DeviceArray() { cudaFree(base_); }
  DeviceArray(DeviceArray&& other) noexcept : base_(other.base_), count_(other.count_) { other.base_ = nullptr; }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* data() const { return reinterpret_cast<T*>(base_ + kGuardBytes); }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  // Both wait: the context's stream does not, and a kernel must not run before its arrays are what they should be.
  void poison() {
    MDI_CUDA(cudaMemset(data(), kPoison, bytes()));
    MDI_CUDA(cudaDeviceSynchronize());
  }
  void upload(const std::vector<T>& values) {
    if (values.size() != count_) throw Error("check", "upload of another size");
    MDI_CUDA(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice));
    MDI_CUDA(cudaDeviceSynchronize());
  }
  // After everything that was launched.
  std::vector<T> download() const {
    std::vector<T> out(count_);
    MDI_CUDA(cudaDeviceSynchronize());
    MDI_CUDA(cudaMemcpy(out.data(), data(), bytes(), cudaMemcpyDeviceToHost));
    return out;
  }
  bool guards_whole() const {
    std::vector<unsigned char> guard(kGuardBytes);
    for (const auto* at : {base_, base_ + kGuardBytes + bytes()}) {
      MDI_CUDA(cudaMemcpy(guard.data(), at, kGuardBytes, cudaMemcpyDeviceToHost));
      for (unsigned char b : guard) {
        if (b != kGuard) return false;
      }
    }
    return true;
  }

 private:
  unsigned char* base_ = nullptr;
  size_t count_ = 0;
};

// The same array on both sides: `host` for the oracle, `device` for the kernel.
template <class T>
struct Mirror {
  std::vector<T> host;
  DeviceArray<T> device;

  Mirror() = default;
  // An input.
  explicit Mirror(std::vector<T> values) : host(std::move(values)), device(host) {}
  // An output, poisoned on both sides.
  explicit Mirror(size_t count) : host(count), device(count) { poison(); }

  void poison() {
    if (!host.empty()) std::memset(static_cast<void*>(host.data()), kPoison, host.size() * sizeof(T));
    device.poison();
  }
  // Makes the device's values those of the host.
  void sync() { device.upload(host); }
};

// ---- comparison -----------------------------------------------------------------------------------------------------
// An element passes when |got - want| <= ulps * (one bf16 rounding of want) + row * (RMS of want's row).
struct Tolerance {
  double ulps = 0, row = 0;
};

struct Comparison {
  bool passed = true;
  double max = 0, mean = 0;  // of |got - want|, in units of the row's RMS
  int64_t wrong = 0, first = -1, elements = 0;
  double got = 0, want = 0;  // at the first element that does not pass
  Tolerance tolerance;
  std::string note;
};

// rows x columns, compared in double. A NaN passes only where a NaN is expected.
Comparison compare_values(const std::vector<double>& got, const std::vector<double>& want, int64_t columns,
                          Tolerance tolerance);

inline double value_of(float v) { return v; }
inline double value_of(bf16 v) { return to_float(v); }
inline double value_of(e4m3 v) { return to_float(v); }
inline double value_of(e8m0 v) { return to_float(v); }

template <class T>
Comparison compare(const std::vector<T>& got, const std::vector<T>& want, int64_t columns, Tolerance tolerance) {
  std::vector<double> g, w;
  g.reserve(got.size());
  w.reserve(want.size());
  for (const T& v : got) g.push_back(value_of(v));
  for (const T& v : want) w.push_back(value_of(v));
  return compare_values(g, w, columns, tolerance);
}

// Device against host of an output, with the guards.
template <class T>
Comparison compare(const Mirror<T>& m, int64_t columns, Tolerance tolerance) {
  Comparison c = compare(m.device.download(), m.host, columns, tolerance);
  if (!m.device.guards_whole()) {
    c.passed = false;
    c.note += " written outside";
  }
  return c;
}

// Bit for bit: `allowed` elements may differ (a rounding that two orders of a sum put on either side of a tie).
template <class T>
Comparison compare_bits(const std::vector<T>& got, const std::vector<T>& want, int64_t allowed = 0) {
  Comparison c;
  c.elements = static_cast<int64_t>(want.size());
  if (got.size() != want.size()) throw Error("check", "arrays of different sizes");
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    if (c.first < 0) {
      c.first = static_cast<int64_t>(i);
      if constexpr (std::is_arithmetic_v<T>) {
        c.got = static_cast<double>(got[i]);
        c.want = static_cast<double>(want[i]);
      } else if constexpr (std::is_same_v<T, std::byte>) {
        c.got = static_cast<double>(got[i]);
        c.want = static_cast<double>(want[i]);
      } else {
        c.got = value_of(got[i]);
        c.want = value_of(want[i]);
      }
    }
    ++c.wrong;
  }
  c.passed = c.wrong <= allowed;
  c.note = allowed > 0 ? " bits, " + std::to_string(allowed) + " may differ" : " bits";
  return c;
}

template <class T>
Comparison compare_bits(const Mirror<T>& m, int64_t allowed = 0) {
  Comparison c = compare_bits(m.device.download(), m.host, allowed);
  if (!m.device.guards_whole()) {
    c.passed = false;
    c.note += " written outside";
  }
  return c;
}

// ---- the program ----------------------------------------------------------------------------------------------------
using sustained::kBF16TFlops, sustained::kFP8TFlops, sustained::kHbmGBs;

struct Work {
  double bytes = 0;  // device memory that must be read and written, once each
  double flops = 0;  // of the rate below
  double tflops = kBF16TFlops;
  double floor_ms() const {
    const double memory = bytes / kHbmGBs * 1e-6;
    const double matrix = flops / tflops * 1e-9;
    return memory > matrix ? memory : matrix;
  }
};

class Harness {
 public:
  // Options: --time (behind the checks), --times (without them), --only NAME (a part of the name; may be repeated),
  // --small (few shapes: for compute-sanitizer).
  Harness(const char* area, int argc, char** argv, int64_t workspace_bytes = int64_t{1} << 30);

  CudaContext& cuda() { return *cuda_; }
  CpuContext& cpu() { return *cpu_; }
  // Where a program's timings begin: from then on --times wants what --only names.
  bool timing() {
    checking_ = checking_ && !time_;
    return time_;
  }
  bool small() const { return small_; }
  bool wants(const std::string& name) const;

  // Waits for the device and prints one line.
  void report(const std::string& name, const std::string& shape, Comparison c);
  void expect(const std::string& name, const std::string& shape, bool passed, const std::string& note = "");

  // launch(set) puts one run on the context's stream; with sets > 1 the runs rotate over input sets that together
  // exceed the L2 (60 MB). Median of 20 or more measurements after 0.4 s of the same load. Returns milliseconds.
  double time(const std::string& name, const std::string& shape, const Work& work,
              const std::function<void(int set)>& launch, int sets = 1);

  int finish();

 private:
  std::string area_;
  std::vector<std::string> only_;
  bool time_ = false, small_ = false, times_alone_ = false, checking_ = true;
  int checks_ = 0, failed_ = 0;
  std::unique_ptr<CudaContext> cuda_;
  std::unique_ptr<CpuContext> cpu_;
};

// A program's main: what run() returns, or 1 and one line for what it throws.
int guarded(int (*run)(int argc, char** argv), int argc, char** argv);

}  // namespace mdi::check
