// The oracle's elementary functions and sums, in its order, for the kernels of small shapes. Those of the released
// shapes have no time for them: they differ in the last bits of fp32, and a bf16 rounding that this flips moves the
// logits of a small model further than the oracle is away from the reference.
#pragma once

#include <cstdint>

namespace mdi::cuda {

// Rounded from double: equal to the C library's expf but for its own last bit in rare cases.
__device__ inline float exp_rounded(float x) { return static_cast<float>(exp(static_cast<double>(x))); }

// log1p for x >= 0, step by step as the C library's log1pf has it (fdlibm).
__device__ inline float log1p_exact(float x) {
  if (!(x < INFINITY)) return x;
  const float ln2_high = 0x1.62e3p-1f, ln2_low = 0x1.2fefa2p-17f;
  int k = 0, fraction = 1;
  float f = x, c = 0;
  if (x < 0x1p-29f) return x < 0x1p-54f ? x : __fsub_rn(x, __fmul_rn(__fmul_rn(x, x), 0.5f));
  if (x >= 0x1.a827aep-2f) {
    float u = __fadd_rn(1.0f, x);
    uint32_t bits = __float_as_uint(u);
    k = static_cast<int>(bits >> 23) - 127;
    c = k > 0 ? __fsub_rn(1.0f, __fsub_rn(u, x)) : __fsub_rn(x, __fsub_rn(u, 1.0f));
    c = __fdiv_rn(c, u);
    bits &= 0x007FFFFFu;
    if (bits < 0x3504F7u) {
      u = __uint_as_float(bits | 0x3F800000u);
    } else {
      ++k;
      u = __uint_as_float(bits | 0x3F000000u);
      bits = (0x00800000u - bits) >> 2;
    }
    fraction = static_cast<int>(bits);
    f = __fsub_rn(u, 1.0f);
  }
  const auto n = static_cast<float>(k);
  const float half = __fmul_rn(__fmul_rn(0.5f, f), f);
  const float tail = __fadd_rn(__fmul_rn(n, ln2_low), c);
  if (fraction == 0) {
    if (f == 0.0f) return __fadd_rn(__fmul_rn(n, ln2_high), tail);
    const float r = __fmul_rn(half, __fsub_rn(1.0f, __fmul_rn(0x1.555556p-1f, f)));
    if (k == 0) return __fsub_rn(f, r);
    return __fsub_rn(__fmul_rn(n, ln2_high), __fsub_rn(__fsub_rn(r, tail), f));
  }
  const float s = __fdiv_rn(f, __fadd_rn(2.0f, f)), z = __fmul_rn(s, s);
  float r = 0x1.2f112ep-3f;
  constexpr float kTerms[6] = {0x1.39a09ep-3f, 0x1.74664ap-3f, 0x1.c71c52p-3f,
                               0x1.24924ap-2f, 0x1.99999ap-2f, 0x1.555556p-1f};
#pragma unroll
  for (int i = 0; i < 6; ++i) r = __fadd_rn(kTerms[i], __fmul_rn(z, r));
  r = __fmul_rn(s, __fadd_rn(half, __fmul_rn(z, r)));
  if (k == 0) return __fsub_rn(f, __fsub_rn(half, r));
  return __fsub_rn(__fmul_rn(n, ln2_high), __fsub_rn(__fsub_rn(half, __fadd_rn(r, tail)), f));
}

// Sum of term(i) over [0, n) as lane_sum of kernels/cpu/simd.h adds: term i to lane i % 16, then a tree. By a whole
// warp; every thread gets it. `term` must round its products by itself.
template <class Term>
__device__ inline float sum_of_16_lanes(int64_t n, Term term) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (lane < 16) {
    for (int64_t i = lane; i < n; i += 16) sum = __fadd_rn(sum, term(i));
  }
  for (int width = 8; width > 0; width /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width));
  return __shfl_sync(0xFFFFFFFFu, sum, 0);
}

}  // namespace mdi::cuda
