// The number formats of the model (spec model.md section 3), exact over every code.
//
// Each format is a plain struct around its bits, so that a pointer into a mapped file is already an array of values.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mdi {

enum class DType : uint8_t { kF32, kBF16, kE4M3, kE8M0, kI8, kU8, kI32, kI64 };

// Bytes of one stored element. kI8 holds two e2m1 codes but is one byte here, as in safetensors.
constexpr size_t dtype_size(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}

// The safetensors spelling ("F8_E4M3"), and back; from_name returns false for a name that is not one of ours.
std::string_view dtype_name(DType t);
bool dtype_from_name(std::string_view name, DType& out);

// ---- bf16: 1-8-7, round to nearest even --------------------------------------------------------------------------
struct bf16 {
  uint16_t bits = 0;
};

inline float to_float(bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }

inline bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // a NaN stays a NaN
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// bf16(x) of the spec: round and widen again.
inline float round_bf16(float v) { return to_float(to_bf16(v)); }

// ---- e8m0: a byte b means 2^(b-127); 255 is NaN ------------------------------------------------------------------
struct e8m0 {
  uint8_t bits = 127;
};

inline float to_float(e8m0 v) {
  if (v.bits == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127, a subnormal
  if (v.bits == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(uint32_t{v.bits} << 23);
}

// ---- e4m3fn: 1-4-3, bias 7, no infinity, NaN = 0x7F, max 448 -----------------------------------------------------
struct e4m3 {
  uint8_t bits = 0;
};

inline float to_float(e4m3 v) {
  const uint32_t magnitude = v.bits & 0x7Fu;
  const uint32_t sign = uint32_t{v.bits & 0x80u} << 24;
  if (magnitude == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude < 8u) {  // subnormal: magnitude * 2^-9
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

// Saturating: clamps to [-448, 448], then rounds to nearest even (spec 3.1). NaN becomes NaN.
e4m3 to_e4m3(float v);

// ---- e2m1: code = sign << 3 | index into 0, 0.5, 1, 1.5, 2, 3, 4, 6 ----------------------------------------------
inline constexpr float kE2M1Values[16] = {0.0f, 0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Clamps to [-6, 6], rounds to nearest, ties to the even code index (spec 3.2). Returns 0..15.
uint8_t to_e2m1(float v);

// Two codes a byte: the low nibble is the even element.
inline float e2m1_low(uint8_t byte) { return kE2M1Values[byte & 15u]; }
inline float e2m1_high(uint8_t byte) { return kE2M1Values[byte >> 4]; }

// ---- block scales (spec 3.3) -------------------------------------------------------------------------------------
inline constexpr float kInv448 = std::bit_cast<float>(0x3B124925u);
inline constexpr float kInv6 = std::bit_cast<float>(0x3E2AAAABu);

// The smallest power of two >= amax / M, where inv = fl32(1/M) is kInv448 or kInv6. amax is finite and positive.
inline e8m0 block_scale(float amax, float inv) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax * inv);
  return {static_cast<uint8_t>(((bits >> 23) & 255u) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u))};
}

}  // namespace mdi
