// The golden operator cases (tests/data/golden/ops), by name.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "checkpoint/safetensors.h"
#include "core/dtype.h"

namespace mdi {

inline const SafetensorsFile& golden_ops() {
  static const SafetensorsFile file(std::filesystem::path(MDI_SOURCE_DIR) / "tests/data/golden/ops/ops.safetensors");
  return file;
}

template <class T>
const T* golden(const std::string& name) {
  return golden_ops().tensor(name).as<T>();
}

inline int64_t golden_dim(const std::string& name, size_t axis) { return golden_ops().tensor(name).shape[axis]; }

// How many bf16 values lie between two; a NaN is far from everything but a NaN.
inline int bf16_distance(bf16 a, bf16 b) {
  const bool nan_a = (a.bits & 0x7FFFu) > 0x7F80u, nan_b = (b.bits & 0x7FFFu) > 0x7F80u;
  if (nan_a || nan_b) return nan_a == nan_b ? 0 : 1 << 20;
  const auto order = [](bf16 v) { return (v.bits & 0x8000u) != 0 ? -static_cast<int>(v.bits & 0x7FFFu) : v.bits; };
  return std::abs(order(a) - order(b));
}

}  // namespace mdi
