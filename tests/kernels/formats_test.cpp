// The number formats over all their codes and all bf16 inputs, against their definitions (spec model.md 3.1 to 3.3).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "kernels/cpu/round_lanes.h"

namespace mdi {
namespace {

uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }

// 1-4-3, bias 7, by the definition.
double e4m3_definition(int code) {
  const int exponent = (code >> 3) & 15, fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1.0 + fraction / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Index of the nearest of the ascending magnitudes, ties to the even index.
int nearest(const std::vector<double>& magnitudes, double a) {
  size_t best = 0;
  for (size_t i = 1; i < magnitudes.size(); ++i) {
    const double d = std::fabs(magnitudes[i] - a), b = std::fabs(magnitudes[best] - a);
    if (d < b || (d == b && i % 2 == 0)) best = i;
  }
  return static_cast<int>(best);
}

std::vector<double> e4m3_magnitudes() {
  std::vector<double> m;
  m.reserve(0x7F);
  for (int code = 0; code < 0x7F; ++code) m.push_back(e4m3_definition(code));
  return m;
}

std::vector<double> e2m1_magnitudes() { return {0, 0.5, 1, 1.5, 2, 3, 4, 6}; }

// Every bf16 that is not a NaN, and the fp32 neighbours of every midpoint of `magnitudes`.
std::vector<float> inputs(const std::vector<double>& magnitudes) {
  std::vector<float> in;
  for (uint32_t b = 0; b < 0x10000u; ++b) {
    const float v = to_float(bf16{static_cast<uint16_t>(b)});
    if (!std::isnan(v)) in.push_back(v);
  }
  for (size_t i = 0; i + 1 < magnitudes.size(); ++i) {
    const auto tie = static_cast<float>((magnitudes[i] + magnitudes[i + 1]) / 2);
    for (float v : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f)}) {
      in.push_back(v);
      in.push_back(-v);
    }
  }
  return in;
}

TEST(Formats, E4M3DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(e4m3{static_cast<uint8_t>(code)});
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(bits_of(value), bits_of(static_cast<float>(e4m3_definition(code)))) << code;
    }
    EXPECT_EQ(bits_of(cpu::e4m3_value(static_cast<uint32_t>(code))), bits_of(value)) << code;
  }
}

TEST(Formats, E4M3RoundsToNearestEven) {
  const auto magnitudes = e4m3_magnitudes();
  for (const float v : inputs(magnitudes)) {
    const int index = nearest(magnitudes, std::min(std::fabs(static_cast<double>(v)), 448.0));
    const auto code = static_cast<uint8_t>(index | (std::signbit(v) ? 0x80 : 0));
    ASSERT_EQ(to_e4m3(v).bits, code) << v;
    const float rounded = cpu::round_to_e4m3(v);
    ASSERT_EQ(bits_of(rounded), bits_of(to_float(e4m3{code}))) << v;
    ASSERT_EQ(cpu::e4m3_code_of(rounded), code) << v;
  }
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()).bits & 0x7F, 0x7F);
}

TEST(Formats, E2M1DecodesEveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto value = [](int code) {
      const auto m = static_cast<float>(e2m1_magnitudes()[static_cast<size_t>(code & 7)]);
      return (code & 8) != 0 && m != 0 ? -m : m;  // code 8 decodes as 0
    };
    EXPECT_EQ(bits_of(e2m1_low(static_cast<uint8_t>(byte))), bits_of(value(byte & 15))) << byte;
    EXPECT_EQ(bits_of(e2m1_high(static_cast<uint8_t>(byte))), bits_of(value(byte >> 4))) << byte;
  }
}

TEST(Formats, E2M1RoundsToNearestEvenIndex) {
  const auto magnitudes = e2m1_magnitudes();
  for (const float v : inputs(magnitudes)) {
    const int index = nearest(magnitudes, std::min(std::fabs(static_cast<double>(v)), 6.0));
    const int code = index | (std::signbit(v) ? 8 : 0);
    ASSERT_EQ(to_e2m1(v), code) << v;
    ASSERT_EQ(cpu::e2m1_code(v), static_cast<uint32_t>(code)) << v;
  }
}

TEST(Formats, E8M0IsAPowerOfTwo) {
  for (int b = 0; b < 255; ++b) {
    EXPECT_EQ(to_float(e8m0{static_cast<uint8_t>(b)}), static_cast<float>(std::ldexp(1.0, b - 127))) << b;
  }
  EXPECT_TRUE(std::isnan(to_float(e8m0{255})));
}

TEST(Formats, BF16RoundsToNearestEven) {
  for (uint32_t b = 0; b < 0x7F80u; ++b) {
    const float low = to_float(bf16{static_cast<uint16_t>(b)});
    const uint32_t tie = (b << 16) + 0x8000u;  // halfway to the next bf16
    EXPECT_EQ(to_bf16(low).bits, b);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie - 1)).bits, b);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie)).bits, b + (b & 1u));
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie + 1)).bits, b + 1);
    ASSERT_EQ(to_bf16(-std::bit_cast<float>(tie)).bits, 0x8000u | (b + (b & 1u)));
  }
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

// Every bf16 maximum that the quantisers' floors let through: the smallest power of two that is at least a / M.
TEST(Formats, BlockScaleIsTheSmallestPowerOfTwo) {
  struct Limit {
    double m;
    float inv, floor;
  };
  for (const Limit& l : {Limit{448.0, kInv448, 1e-4f}, Limit{6.0, kInv6, 6.0f * 0x1p-126f}}) {
    for (uint32_t b = 1; b < 0x7F80u; ++b) {
      const float a = to_float(bf16{static_cast<uint16_t>(b)});
      if (a < l.floor) continue;
      int exponent = std::ilogb(static_cast<double>(a) / l.m) - 1;
      while (std::ldexp(l.m, exponent) < static_cast<double>(a)) ++exponent;  // exact in double
      ASSERT_EQ(block_scale(a, l.inv).bits, exponent + 127) << a << " / " << l.m;
    }
    EXPECT_GT(block_scale(l.floor, l.inv).bits, 0);
  }
}

}  // namespace
}  // namespace mdi
