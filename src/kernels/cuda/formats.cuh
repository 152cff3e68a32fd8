// The number formats on the device: the same results as core/dtype.h and kernels/cpu/quant.h, bit for bit, for every
// input that is not a NaN (a NaN stays one). Products and sums that the oracle rounds one by one are spelled with
// __fmul_rn and __fadd_rn, so that the compiler does not fuse them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/dtype.h"

namespace mdi::cuda {

// ---- bf16 -----------------------------------------------------------------------------------------------------------
__device__ inline float widen(bf16 v) { return __uint_as_float(uint32_t{v.bits} << 16); }
// Of two values in one word (element 0 in the low half).
__device__ inline float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_half(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ inline bf16 narrow(float v) { return {static_cast<uint16_t>(pack_bf16(v, 0.0f))}; }
__device__ inline float rounded(float v) { return __uint_as_float(pack_bf16(0.0f, v) & 0xFFFF0000u); }

// ---- block scales (spec 3.3) ----------------------------------------------------------------------------------------
// Largest magnitude of eight bf16 values, as bf16 bits: magnitudes order like their bits, and a NaN is above infinity.
__device__ inline uint32_t magnitude_max(uint4 v) {
  const uint32_t a =
      __vmaxu2(__vmaxu2(v.x & 0x7FFF7FFFu, v.y & 0x7FFF7FFFu), __vmaxu2(v.z & 0x7FFF7FFFu, v.w & 0x7FFF7FFFu));
  return max(a & 0xFFFFu, a >> 16);
}
__device__ inline uint32_t magnitude_max(uint32_t pair) { return max(pair & 0x7FFFu, (pair >> 16) & 0x7FFFu); }

// The largest over groups of `width` neighbouring lanes (a power of two).
__device__ inline uint32_t group_max(uint32_t v, int width) {
  for (int step = 1; step < width; step *= 2) v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

inline constexpr float kActFloor = 1e-4f;
inline constexpr float kFp4FloorE8M0 = 6.0f * 0x1p-126f;
inline constexpr float kFp4FloorE4M3 = 6.0f * 0x1p-9f;
inline constexpr float kInverse448 = 0x1.24924ap-9f;  // the constants of dtype.h: 0x3B124925 and 0x3E2AAAAB
inline constexpr float kInverse6 = 0x1.555556p-3f;

// The scale byte of a block whose largest magnitude has these bf16 bits; 255 for a NaN or an infinity.
__device__ inline uint32_t scale_byte(uint32_t magnitude, float floor, float inverse_limit) {
  if (magnitude >= 0x7F80u) return 255;
  const float largest = fmaxf(__uint_as_float(magnitude << 16), floor);
  const uint32_t bits = __float_as_uint(__fmul_rn(largest, inverse_limit));
  return ((bits >> 23) & 255u) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
}
__device__ inline float e8m0_value(uint32_t byte) {
  return byte == 0 ? 0x1p-127f : byte == 255 ? __uint_as_float(0x7FC00000u) : __uint_as_float(byte << 23);
}
// 1 / e8m0_value(byte), for 1 <= byte <= 253.
__device__ inline float e8m0_inverse(uint32_t byte) { return __uint_as_float((254u - byte) << 23); }

// ---- e4m3 -----------------------------------------------------------------------------------------------------------
// Two codes, `low` in the low byte; saturating, to nearest even.
__device__ inline uint32_t e4m3_codes(float low, float high) {
  uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
  return out;
}
// Two codes to two floats.
__device__ inline float2 e4m3_values(uint32_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  __half2 h;
  memcpy(&h, &halves, sizeof h);
  return __half22float2(h);
}
__device__ inline float e4m3_float(e4m3 v) { return e4m3_values(v.bits).x; }

// ---- e2m1 -----------------------------------------------------------------------------------------------------------
// How many of the seven ties lie below |v|; a tie that goes to the even code above it counts itself.
__device__ inline uint32_t e2m1_code(float v) {
  const float a = fabsf(v);
  const uint32_t index = uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} + uint32_t{a >= 1.75f} +
                         uint32_t{a > 2.5f} + uint32_t{a >= 3.5f} + uint32_t{a > 5.0f};
  return index | ((__float_as_uint(v) >> 28) & 8u);
}
// 0, 0.5, 1, 1.5, 2, 3, 4, 6 with the sign of bit 3; code 8 is 0.
__device__ inline float e2m1_value(uint32_t code) {
  const uint32_t m = code & 7u;
  // Above 1 the code is a float of two exponent bits and one fraction bit; 0 and 0.5 are its subnormals.
  const float value = m < 2 ? 0.5f * static_cast<float>(m) : __uint_as_float((m << 22) + (126u << 23));
  return (code & 8u) != 0 && m != 0 ? -value : value;
}

// ---- rope (6.2) -----------------------------------------------------------------------------------------------------
// (cos, sin) of fl32(fl32(position) * inv_freq). Through double: the angle is exact in fp32 and may be 1e6.
__device__ inline float2 rope_angle(int32_t position, float inv_freq) {
  const float angle = __fmul_rn(static_cast<float>(position), inv_freq);
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  return {static_cast<float>(cosine), static_cast<float>(sine)};
}
// One adjacent pair (re, im) in a word. Negate cos_sin.y for the inverse.
__device__ inline uint32_t rope_pair(uint32_t pair, float2 cos_sin) {
  const float re = low_half(pair), im = high_half(pair);
  return pack_bf16(__fsub_rn(__fmul_rn(re, cos_sin.x), __fmul_rn(im, cos_sin.y)),
                   __fadd_rn(__fmul_rn(re, cos_sin.y), __fmul_rn(im, cos_sin.x)));
}

// ---- sums -----------------------------------------------------------------------------------------------------------
// The oracle's RMSNorm sums element i of a row into lane i % 64 and adds the lanes as a tree; here thread t of a warp
// holds lanes 2t (a) and 2t + 1 (b). Every thread gets the sum.
__device__ inline float tree_of_64(float a, float b) {
  for (int half = 16; half > 0; half /= 2) {
    a = __fadd_rn(a, __shfl_down_sync(0xFFFFFFFFu, a, half));
    b = __fadd_rn(b, __shfl_down_sync(0xFFFFFFFFu, b, half));
  }
  return __shfl_sync(0xFFFFFFFFu, __fadd_rn(a, b), 0);
}
// 1 / sqrt(sum / n + eps), every step rounded.
__device__ inline float inverse_rms(float sum, int64_t n, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(n)), eps)));
}

}  // namespace mdi::cuda
