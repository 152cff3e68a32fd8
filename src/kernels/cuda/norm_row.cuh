// RMSNorm of one row by a group of threads (spec 3.6), in the oracle's order of sums.
//
// The oracle adds element i into lane i % 64. Loads that follow that order are 4 bytes wide and wait for one another
// (35% of the memory rate at rows of 5,120); so the row comes in with 16-byte loads, all in flight at once, stays in
// registers for the second pass, and is added up from shared memory.
#pragma once

#include "kernels/cuda/formats.cuh"

namespace mdi::cuda {

// Thread `thread` of kThreads keeps vectors thread, thread + kThreads, ... (of eight values) of the row, and puts them
// into `shared` [n]. n % 8 == 0, n <= 8 * kThreads * kVectors.
template <int kThreads, int kVectors>
__device__ void load_row(const bf16* x, int n, int thread, uint4 (&v)[kVectors], bf16* shared) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int e = 8 * (thread + k * kThreads);
    v[k] = e < n ? *reinterpret_cast<const uint4*>(x + e) : uint4{};
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int e = 8 * (thread + k * kThreads);
    if (e < n) *reinterpret_cast<uint4*>(shared + e) = v[k];
  }
}

// By one warp, after the row is complete in `shared`. Every lane gets the inverse RMS.
__device__ inline float shared_inverse_rms(const bf16* shared, int n, float eps, int lane) {
  float even = 0, odd = 0;
#pragma unroll 8
  for (int e = 2 * lane; e < n; e += 64) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(shared + e);
    even = __fadd_rn(even, __fmul_rn(low_half(pair), low_half(pair)));
    odd = __fadd_rn(odd, __fmul_rn(high_half(pair), high_half(pair)));
  }
  return inverse_rms(tree_of_64(even, odd), n, eps);
}

__device__ inline uint32_t normalised_pair(uint32_t x, uint32_t w, float r) {
  return pack_bf16(low_half(w) * (low_half(x) * r), high_half(w) * (high_half(x) * r));
}
__device__ inline uint4 normalised(uint4 x, uint4 w, float r) {
  return {normalised_pair(x.x, w.x, r), normalised_pair(x.y, w.y, r), normalised_pair(x.z, w.z, r),
          normalised_pair(x.w, w.w, r)};
}

// act_quant_dequant of eight values whose block's scale byte is known (spec 3.4).
__device__ inline uint32_t requantised_pair(uint32_t pair, float inverse, float scale) {
  const float2 v = e4m3_values(e4m3_codes(low_half(pair) * inverse, high_half(pair) * inverse));
  return pack_bf16(v.x * scale, v.y * scale);
}
__device__ inline uint4 requantised(uint4 v, uint32_t byte) {
  if (byte == 255) return {0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u};
  const float inverse = e8m0_inverse(byte), scale = e8m0_value(byte);
  return {requantised_pair(v.x, inverse, scale), requantised_pair(v.y, inverse, scale),
          requantised_pair(v.z, inverse, scale), requantised_pair(v.w, inverse, scale)};
}

}  // namespace mdi::cuda
