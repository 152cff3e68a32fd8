// Weights and rows for the product tests, from a counter, and the value of a stored weight by its definition.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace mdi {

struct Random {
  uint64_t state = 1;
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  // In [-1, 1), exact in bf16.
  float number() { return round_bf16(static_cast<float>(static_cast<int32_t>(next() % 65536) - 32768) * 0x1p-15f); }
};

inline std::vector<bf16> random_rows(uint64_t seed, int64_t n) {
  Random random{seed};
  std::vector<bf16> x(static_cast<size_t>(n));
  for (bf16& v : x) v = to_bf16(random.number());
  return x;
}

struct StoredWeight {
  std::vector<uint8_t> data;
  std::vector<e8m0> scale;
  LinearWeight w;
};

// Random codes without NaN, scales around 2^-7.
inline StoredWeight random_weight(uint64_t seed, WeightKind kind, int64_t n, int64_t k) {
  Random random{seed};
  StoredWeight s;
  const int64_t blocks = (k + 31) / 32;
  switch (kind) {
    case WeightKind::kE4M3:
      s.data.resize(static_cast<size_t>(n * k));
      for (uint8_t& b : s.data) {
        do b = static_cast<uint8_t>(random.next());
        while ((b & 0x7F) == 0x7F);
      }
      s.scale.resize(static_cast<size_t>((n + 31) / 32 * blocks));
      break;
    case WeightKind::kE2M1:
      s.data.resize(static_cast<size_t>(n * k / 2));
      for (uint8_t& b : s.data) b = static_cast<uint8_t>(random.next());
      s.scale.resize(static_cast<size_t>(n * blocks));
      break;
    case WeightKind::kBF16: {
      s.data.resize(static_cast<size_t>(n * k * 2));
      auto* v = reinterpret_cast<bf16*>(s.data.data());
      for (int64_t i = 0; i < n * k; ++i) v[i] = to_bf16(random.number());
      break;
    }
    case WeightKind::kF32: {
      s.data.resize(static_cast<size_t>(n * k * 4));
      auto* v = reinterpret_cast<float*>(s.data.data());
      for (int64_t i = 0; i < n * k; ++i) v[i] = random.number() + random.number() * 0x1p-9f;
      break;
    }
  }
  for (e8m0& e : s.scale) e = {static_cast<uint8_t>(117 + random.next() % 8)};
  s.w = {kind, s.data.data(), s.scale.empty() ? nullptr : s.scale.data(), n, k};
  return s;
}

inline double weight_value(const LinearWeight& w, int64_t row, int64_t k) {
  const int64_t blocks = (w.k + 31) / 32;
  switch (w.kind) {
    case WeightKind::kE4M3:
      return double{to_float(static_cast<const e4m3*>(w.data)[row * w.k + k])} *
             to_float(w.scale[row / 32 * blocks + k / 32]);
    case WeightKind::kE2M1: {
      const uint8_t byte = static_cast<const uint8_t*>(w.data)[(row * w.k + k) / 2];
      return double{k % 2 == 0 ? e2m1_low(byte) : e2m1_high(byte)} * to_float(w.scale[row * blocks + k / 32]);
    }
    case WeightKind::kBF16:
      return to_float(static_cast<const bf16*>(w.data)[row * w.k + k]);
    case WeightKind::kF32:
      break;
  }
  return static_cast<const float*>(w.data)[row * w.k + k];
}

}  // namespace mdi
