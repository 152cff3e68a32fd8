// Sixteen float lanes, as the compiler's vector extension: one spelling for every instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace mdi::cpu {

inline constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(64)));

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }
inline Lanes splat(float x) { return Lanes{} + x; }

// One rounding (contraction is off in this build, so a * b + c would be two).
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#ifdef __AVX512F__
  return reinterpret_cast<Lanes>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  for (int i = 0; i < kLanes; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

// A fixed tree, so that the result is the same wherever it is called.
inline float horizontal_sum(Lanes v) {
  float a[kLanes];
  store(a, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

// Sum of f(i) over i in [0, n): lane i % 16 takes term i, then the tree.
template <class Term>
inline float lane_sum(int64_t n, Term term) {
  float acc[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) acc[l] += term(i + l);
  }
  for (int l = 0; i < n; ++i, ++l) acc[l] += term(i);
  return horizontal_sum(load(acc));
}

}  // namespace mdi::cpu
