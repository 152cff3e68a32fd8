// Branch-free forms of the conversions in core/dtype.h, for loops that the compiler vectorises. Equal to to_e4m3,
// to_e2m1 and to_float bit for bit (tests/kernels/formats_test.cpp goes over every bf16 input and every code).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace mdi::cpu {

// The float that to_e4m3(v) stands for. v is not NaN; its sign is kept, also on zero.
inline float round_to_e4m3(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  const uint32_t sign = u & 0x80000000u;
  const float a = std::min(std::bit_cast<float>(u & 0x7FFFFFFFu), 448.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(a);
  const uint32_t normal = (bits + 0x7FFFFu + ((bits >> 20) & 1u)) & ~0xFFFFFu;
  const uint32_t subnormal = std::bit_cast<uint32_t>((a + 0x1p14f) - 0x1p14f);  // a multiple of 2^-9
  return std::bit_cast<float>(sign | (a < 0x1p-6f ? subnormal : normal));
}

// The code of a float on the e4m3 grid, as round_to_e4m3 returns it.
inline uint8_t e4m3_code_of(float on_grid) {
  const uint32_t u = std::bit_cast<uint32_t>(on_grid);
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  const auto steps = static_cast<uint32_t>(static_cast<int32_t>(std::bit_cast<float>(magnitude) * 0x1p9f));
  const uint32_t normal = (magnitude >> 20) - (120u << 3);
  return static_cast<uint8_t>(((u >> 24) & 0x80u) | (magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? steps : normal));
}

// to_float(e4m3{code}), NaN codes included. A subnormal is twice what its normal reading exceeds 2^-7 by.
inline float e4m3_value(uint32_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float finite = magnitude < 8u ? 2.0f * normal - 0x1p-6f : normal;
  const uint32_t bits = magnitude == 0x7Fu ? 0x7FC00000u : std::bit_cast<uint32_t>(finite);
  return std::bit_cast<float>(bits | ((code & 0x80u) << 24));
}

// to_e2m1(v): how many of the seven ties lie below |v|; a tie that goes to the even code above it counts itself.
inline uint32_t e2m1_code(float v) {
  const float a = std::fabs(v);
  const uint32_t index = uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} + uint32_t{a >= 1.75f} +
                         uint32_t{a > 2.5f} + uint32_t{a >= 3.5f} + uint32_t{a > 5.0f};
  return index | ((std::bit_cast<uint32_t>(v) >> 28) & 8u);
}

}  // namespace mdi::cpu
