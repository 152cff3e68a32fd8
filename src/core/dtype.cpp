#include "core/dtype.h"

#include <algorithm>

namespace mdi {

std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kE4M3:
      return "F8_E4M3";
    case DType::kE8M0:
      return "F8_E8M0";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

bool dtype_from_name(std::string_view name, DType& out) {
  for (DType t :
       {DType::kF32, DType::kBF16, DType::kE4M3, DType::kE8M0, DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    if (dtype_name(t) == name) {
      out = t;
      return true;
    }
  }
  return false;
}

e4m3 to_e4m3(float v) {
  const uint32_t sign = (std::bit_cast<uint32_t>(v) >> 24) & 0x80u;
  if (std::isnan(v)) return {static_cast<uint8_t>(sign | 0x7Fu)};
  const float a = std::min(std::fabs(v), 448.0f);
  if (a < 0x1p-6f) {  // subnormal: a multiple of 2^-9; adding 2^14 rounds to it (ulp of [2^14, 2^15) is 2^-9)
    const uint32_t steps = std::bit_cast<uint32_t>(a + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
    return {static_cast<uint8_t>(sign | steps)};
  }
  uint32_t u = std::bit_cast<uint32_t>(a);
  u += 0x7FFFFu + ((u >> 20) & 1u);  // keep 3 fraction bits, ties to even
  return {static_cast<uint8_t>(sign | ((u >> 20) - ((127u - 7u) << 3)))};
}

uint8_t to_e2m1(float v) {
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 8 : 0);
  const float a = std::fabs(v);
  // Each comparison is strict where the tie goes down and not where it goes up: ties go to the even index.
  uint8_t index = 7;
  if (a <= 0.25f) {
    index = 0;
  } else if (a < 0.75f) {
    index = 1;
  } else if (a <= 1.25f) {
    index = 2;
  } else if (a < 1.75f) {
    index = 3;
  } else if (a <= 2.5f) {
    index = 4;
  } else if (a < 3.5f) {
    index = 5;
  } else if (a <= 5.0f) {
    index = 6;
  }
  return static_cast<uint8_t>(sign | index);
}

}  // namespace mdi
