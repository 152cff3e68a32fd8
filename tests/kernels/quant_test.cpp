// The quantisers and the norm: golden cases, and the cases that they do not have.
#include "kernels/cpu/quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "golden_ops.h"

namespace mdi {
namespace {

const char* const kCases[] = {"random", "huge", "ties", "just_above_top", "wide_range", "zero_and_tiny"};

template <class T>
testing::AssertionResult same_bytes(const std::vector<T>& found, const void* expected) {
  const auto* a = reinterpret_cast<const uint8_t*>(found.data());
  const auto* b = static_cast<const uint8_t*>(expected);
  for (size_t i = 0; i < found.size() * sizeof(T); ++i) {
    if (a[i] != b[i]) {
      return testing::AssertionFailure() << "byte " << i << ": expected " << int{b[i]} << ", found " << int{a[i]};
    }
  }
  return testing::AssertionSuccess();
}

TEST(Quant, ActQuantIsTheGoldenOne) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    const std::string prefix = std::string("act_quant.") + name + ".";
    const bf16* x = golden<bf16>(prefix + "x");
    const int64_t rows = golden_dim(prefix + "x", 0), k = golden_dim(prefix + "x", 1);
    std::vector<e4m3> q(static_cast<size_t>(rows * k));
    std::vector<e8m0> scale(static_cast<size_t>(rows * k / 32));
    std::vector<bf16> dequant(q.size()), in_one(q.size());
    for (int64_t i = 0; i < rows; ++i) {
      cpu::act_quant(x + i * k, k, &q[i * k], &scale[i * k / 32]);
      cpu::act_dequant(&q[i * k], &scale[i * k / 32], k, &dequant[i * k]);
      cpu::act_quant_dequant(x + i * k, k, &in_one[i * k]);
    }
    EXPECT_TRUE(same_bytes(q, golden<e4m3>(prefix + "q")));
    EXPECT_TRUE(same_bytes(scale, golden<e8m0>(prefix + "scale")));
    EXPECT_TRUE(same_bytes(dequant, golden<bf16>(prefix + "dequant")));
    EXPECT_TRUE(same_bytes(in_one, golden<bf16>(prefix + "dequant")));
  }
}

// The specification's own vector (spec test-vectors.md).
TEST(Quant, ActQuantOfTheSpecificationsRow) {
  std::vector<bf16> x(32), y(32);
  for (int i = 0; i < 32; ++i) x[i] = to_bf16(static_cast<float>(0.37 * std::sin(1.7 * i)));
  cpu::act_quant_dequant(x.data(), 32, y.data());
  const float expected[] = {0, 0.375f, -0.09375f, -0.34375f, 0.1875f, 0.28125f};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(to_float(y[i]), expected[i]);

  const int codes[] = {0, 7,  11, 15, 5, 6,  14, 14, 7, 4,  15, 10, 7,  9,  15, 4,
                       7, 13, 14, 6,  5, 15, 11, 7,  0, 15, 3,  7,  13, 14, 6,  6};
  uint8_t packed[16];
  e8m0 scale;
  cpu::fp4_quant_e8m0(x.data(), 32, packed, &scale);
  EXPECT_EQ(scale.bits, 127 - 4);
  for (int i = 0; i < 32; ++i) EXPECT_EQ((packed[i / 2] >> (i % 2 * 4)) & 15, codes[i]) << i;
}

TEST(Quant, Fp4IsTheGoldenOne) {
  for (const char* name : kCases) {
    for (const bool e4m3_scale : {false, true}) {
      const int64_t block = e4m3_scale ? 16 : 32;
      const std::string prefix = (e4m3_scale ? "fp4_quant_e4m3_16." : "fp4_quant_e8m0_32.") + std::string(name) + ".";
      SCOPED_TRACE(prefix);
      const bf16* x = golden<bf16>(prefix + "x");
      const int64_t rows = golden_dim(prefix + "x", 0), k = golden_dim(prefix + "x", 1);
      std::vector<uint8_t> packed(static_cast<size_t>(rows * k / 2));
      std::vector<e4m3> fine(static_cast<size_t>(rows * k / block));
      std::vector<e8m0> power(fine.size());
      std::vector<float> dequant(static_cast<size_t>(rows * k));
      for (int64_t i = 0; i < rows; ++i) {
        if (e4m3_scale) {
          cpu::fp4_quant_e4m3(x + i * k, k, &packed[i * k / 2], &fine[i * k / block]);
          cpu::fp4_dequant_e4m3(&packed[i * k / 2], &fine[i * k / block], k, &dequant[i * k]);
        } else {
          cpu::fp4_quant_e8m0(x + i * k, k, &packed[i * k / 2], &power[i * k / block]);
          cpu::fp4_dequant_e8m0(&packed[i * k / 2], &power[i * k / block], k, &dequant[i * k]);
        }
      }
      EXPECT_TRUE(same_bytes(packed, golden<uint8_t>(prefix + "packed")));
      EXPECT_TRUE(e4m3_scale ? same_bytes(fine, golden<uint8_t>(prefix + "scale"))
                             : same_bytes(power, golden<uint8_t>(prefix + "scale")));
      const bf16* expected = golden<bf16>(prefix + "dequant");
      for (size_t i = 0; i < dequant.size(); ++i) {  // by value: code 8 decodes as 0
        ASSERT_EQ(round_bf16(dequant[i]), to_float(expected[i])) << i;
      }
    }
  }
}

// A block that ends with the row is quantised as if zeros followed.
TEST(Quant, TheLastBlockMayBeShort) {
  for (const int64_t k : {1, 31, 33, 70}) {
    std::vector<bf16> x(96), y(96), whole(96);
    for (int64_t i = 0; i < k; ++i) x[i] = to_bf16(static_cast<float>((i * 37) % 19) - 9.3f);
    cpu::act_quant_dequant(x.data(), 96, whole.data());
    std::vector<e4m3> q(96);
    std::vector<e8m0> scale(3);
    cpu::act_quant(x.data(), k, q.data(), scale.data());
    cpu::act_dequant(q.data(), scale.data(), k, y.data());
    std::vector<bf16> in_place = x;
    cpu::act_quant_dequant(in_place.data(), k, in_place.data());
    for (int64_t i = 0; i < k; ++i) {
      EXPECT_EQ(y[i].bits, whole[i].bits) << k << " " << i;
      EXPECT_EQ(in_place[i].bits, whole[i].bits) << k << " " << i;
    }
  }
}

// What is not a number stays visible, and stays in its block.
TEST(Quant, NanAndInfinitySpoilTheirBlockOnly) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<bf16> x(64, to_bf16(1.0f)), y(64);
    x[5] = to_bf16(bad);
    cpu::act_quant_dequant(x.data(), 64, y.data());
    std::vector<e4m3> q(64);
    std::vector<e8m0> scale(2);
    cpu::act_quant(x.data(), 64, q.data(), scale.data());
    EXPECT_EQ(scale[0].bits, 255);
    for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(to_float(y[i])));
    for (int i = 32; i < 64; ++i) EXPECT_EQ(to_float(y[i]), 1.0f);
  }
}

TEST(Quant, RmsNormIsTheGoldenOne) {
  for (const char* name : {"rmsnorm.case0.", "rmsnorm.case1."}) {
    const std::string prefix = name;
    const int64_t rows = golden_dim(prefix + "x", 0), n = golden_dim(prefix + "x", 1);
    std::vector<bf16> y(static_cast<size_t>(n));
    for (int64_t i = 0; i < rows; ++i) {
      cpu::rms_norm(golden<bf16>(prefix + "x") + i * n, golden<bf16>(prefix + "weight"), n, 1e-20f, y.data());
      for (int64_t j = 0; j < n; ++j) EXPECT_LE(bf16_distance(y[j], golden<bf16>(prefix + "out")[i * n + j]), 1);
    }
  }
}

TEST(Quant, RmsNormOfAnyLength) {
  for (const int64_t n : {1, 63, 64, 65, 1000}) {
    std::vector<bf16> x(static_cast<size_t>(n)), w(x.size()), y(x.size());
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      x[i] = to_bf16(static_cast<float>((i * 29) % 31) - 15.2f);
      w[i] = to_bf16(1.0f + 0.01f * static_cast<float>(i % 7));
      sum += std::pow(to_float(x[i]), 2.0);
    }
    cpu::rms_norm(x.data(), w.data(), n, 1e-20f, y.data());
    for (int64_t i = 0; i < n; ++i) {
      const double expected = to_float(w[i]) * (to_float(x[i]) / std::sqrt(sum / static_cast<double>(n)));
      EXPECT_LE(bf16_distance(y[i], to_bf16(static_cast<float>(expected))), 1) << n << " " << i;
    }
  }
  std::vector<bf16> zero(64), y(64, to_bf16(3.0f));
  cpu::rms_norm(zero.data(), zero.data(), 64, 1e-20f, y.data());
  for (const bf16 v : y) EXPECT_EQ(to_float(v), 0.0f);
}

}  // namespace
}  // namespace mdi
