// What the files of the oracle share: fetching from the device, and comparing.
#pragma once

#include "engine/bench/oracle.h"

#ifdef MDI_WITH_CUDA

#include <chrono>

namespace mdi::bench {

inline constexpr int kPairs = 32;
inline constexpr int kRows = 2 * kPairs;

// Of two products with act_quant between. A bf16 rounding that differs there moves a code, one in 16 to 32 of a value's
// size; at a block's largest value it may move the block's scale, and with it 32 codes: seen as 20 values of one row.
inline constexpr Tolerance kQuantised{.ulps = 2, .row = 2e-2, .share = 1e-3, .mean = 1e-3};

inline double value_of(float v) { return v; }
inline double value_of(double v) { return v; }
inline double value_of(bf16 v) { return to_float(v); }
inline double value_of(int32_t v) { return v; }
inline double value_of(int64_t v) { return static_cast<double>(v); }

template <class T>
std::vector<T> Oracle::fetch(const T* device, int64_t count) const {
  std::vector<T> host(static_cast<size_t>(count));
  gpu_.backend->copy_out(gpu_, host.data(), device, count * static_cast<int64_t>(sizeof(T)));
  return host;
}

template <class T>
std::vector<T> Oracle::rows(const T* device, int64_t width) const {
  std::vector<T> host(static_cast<size_t>(kRows * width));
  for (size_t i = 0; i < kRows; i += 2) {  // a pair at a time
    gpu_.backend->copy_out(gpu_, host.data() + static_cast<int64_t>(i) * width, device + sampled_[i] * width,
                           2 * width * static_cast<int64_t>(sizeof(T)));
  }
  return host;
}

template <class T>
const T* Oracle::keep(const T* device, int64_t count) {
  if (device == nullptr) return nullptr;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  kept_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes)));
  gpu_.backend->copy_out(gpu_, kept_.back().get(), device, bytes);
  return reinterpret_cast<const T*>(kept_.back().get());
}

template <class T>
void Oracle::compare(const char* what, const std::vector<T>& got, const std::vector<T>& want, int64_t columns,
                     Tolerance tolerance) {
  std::vector<double> g, w;
  for (const T& v : got) g.push_back(value_of(v));
  for (const T& v : want) w.push_back(value_of(v));
  add(compare_rows(what, gpu_.layer, g, w, columns, tolerance));
}

// Times what lies between, and lets go of the operation's copies.
struct Borrowed {
  Oracle& oracle;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  explicit Borrowed(Oracle& o) : oracle(o) {}
  ~Borrowed() {
    oracle.finish();
    oracle.seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
};

}  // namespace mdi::bench

#endif
