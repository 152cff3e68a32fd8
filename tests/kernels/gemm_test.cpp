// Dense products: golden cases, double-precision sums at odd shapes, and what a row may not depend on.
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "golden_ops.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/quant.h"
#include "random_weights.h"

namespace mdi {
namespace {

using cpu::GemmMode;

constexpr WeightKind kKinds[] = {WeightKind::kE4M3, WeightKind::kE2M1, WeightKind::kBF16, WeightKind::kF32};
constexpr GemmMode kModes[] = {GemmMode::kF32, GemmMode::kBF16, GemmMode::kOwn};

struct ModeGuard {
  GemmMode before = cpu::gemm_mode();
  explicit ModeGuard(GemmMode mode) { cpu::set_gemm_mode(mode); }
  ~ModeGuard() { cpu::set_gemm_mode(before); }
};

ThreadPool& pool(int threads = 2) {
  static ThreadPool one(1), two(2);
  return threads == 1 ? one : two;
}

std::vector<float> product(const bf16* x, int64_t m, const LinearWeight& w, int threads = 2) {
  std::vector<float> y(static_cast<size_t>(m * w.n), NAN);
  cpu::gemm(pool(threads), {.x = x, .m = m, .ldx = w.k, .w = w, .y_f32 = y.data(), .y_bf16 = nullptr, .ldy = w.n});
  return y;
}

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// ---- golden cases ---------------------------------------------------------------------------------------------------

void check_golden_product(const std::string& prefix, WeightKind kind) {
  SCOPED_TRACE(prefix);
  const int64_t m = golden_dim(prefix + "a", 0), k = golden_dim(prefix + "a", 1);
  const std::string b = prefix + (kind == WeightKind::kE4M3 ? "b" : "b_packed");
  const LinearWeight w{kind, golden<uint8_t>(b), golden<e8m0>(prefix + "b_scale"), golden_dim(b, 0), k};
  std::vector<bf16> x(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i) {
    cpu::act_dequant(golden<e4m3>(prefix + "a") + i * k, golden<e8m0>(prefix + "a_scale") + i * ((k + 31) / 32), k,
                     &x[i * k]);
  }
  const std::vector<float> y = product(x.data(), m, w);
  std::vector<bf16> rounded(y.size());
  cpu::gemm(pool(), {.x = x.data(), .m = m, .ldx = k, .w = w, .y_f32 = nullptr, .y_bf16 = rounded.data(), .ldy = w.n});
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_LE(bf16_distance(rounded[i], golden<bf16>(prefix + "out_bf16")[i]), 1) << i;
    EXPECT_EQ(rounded[i].bits, to_bf16(y[i]).bits) << i;
  }
  if (!golden_ops().contains(prefix + "out_f32")) return;
  const float* expected = golden<float>(prefix + "out_f32");
  for (int64_t i = 0; i < m; ++i) {
    float largest = 0, error = 0;
    for (int64_t n = 0; n < w.n; ++n) {
      largest = std::max(largest, std::fabs(expected[i * w.n + n]));
      error = std::max(error, std::fabs(expected[i * w.n + n] - y[static_cast<size_t>(i * w.n + n)]));
    }
    EXPECT_LE(error, 1e-5f * largest) << "row " << i;
  }
}

TEST(Gemm, GoldenCasesInEveryMode) {
  for (const GemmMode mode : kModes) {
    const ModeGuard guard(mode);
    for (const char* name : {"case0.", "case1.", "case2.", "case3."}) {
      check_golden_product(std::string("fp8_gemm.") + name, WeightKind::kE4M3);
    }
    for (const char* name : {"case0.", "case1.", "case2."}) {
      check_golden_product(std::string("fp4_gemm.") + name, WeightKind::kE2M1);
    }
  }
}

TEST(Gemm, GoldenLinear) {
  const std::string prefix = "linear_fp8.case0.";
  const int64_t m = golden_dim(prefix + "x", 0), k = golden_dim(prefix + "x", 1);
  const LinearWeight w{WeightKind::kE4M3, golden<uint8_t>(prefix + "weight"), golden<e8m0>(prefix + "scale"),
                       golden_dim(prefix + "weight", 0), k};
  std::vector<bf16> x(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i) cpu::act_quant_dequant(golden<bf16>(prefix + "x") + i * k, k, &x[i * k]);
  const std::vector<float> y = product(x.data(), m, w);
  const bf16* expected = golden<bf16>(prefix + "out");
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += std::pow(round_bf16(y[i]) - to_float(expected[i]), 2.0);
    size += std::pow(to_float(expected[i]), 2.0);
  }
  EXPECT_LE(std::sqrt(error / size), 1e-2);
}

// ---- values ---------------------------------------------------------------------------------------------------------

TEST(Gemm, OddShapesOfEveryKindInEveryMode) {
  for (const GemmMode mode : kModes) {
    const ModeGuard guard(mode);
    for (const WeightKind kind : kKinds) {
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 2},
                                    {3, 63, 30},
                                    {5, 64, 32},
                                    {7, 65, 34},
                                    {64, 130, 66},
                                    {66, 17, 514},
                                    {2, 40, 1100}}) {
        SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << " kind " << static_cast<int>(kind)
                                        << " m " << m << " n " << n << " k " << k);
        const StoredWeight s = random_weight(static_cast<uint64_t>(n + k), kind, n, k);
        const auto x = random_rows(static_cast<uint64_t>(m), m * k);
        const auto y = product(x.data(), m, s.w);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t c = 0; c < k; ++c) {
              const double term = to_float(x[static_cast<size_t>(i * k + c)]) * weight_value(s.w, j, c);
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(i * n + j)], sum, 1e-6 * size) << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(Gemm, NoRowsAndNoColumnsAreLegal) {
  const StoredWeight s = random_weight(1, WeightKind::kE4M3, 64, 64);
  EXPECT_TRUE(product(nullptr, 0, s.w).empty());
  const auto x = random_rows(1, 64);
  for (const float y : product(x.data(), 1, {WeightKind::kBF16, s.w.data, nullptr, 64, 0})) EXPECT_EQ(y, 0.0f);
}

// Padding between rows of x is not read, and of y not written.
TEST(Gemm, StridesAreRespected) {
  for (const GemmMode mode : kModes) {
    const ModeGuard guard(mode);
    for (const int64_t m : {2, 70}) {
      const int64_t n = 70, k = 100, ldx = 111, ldy = 79;
      const StoredWeight s = random_weight(3, WeightKind::kE4M3, n, k);
      const auto x = random_rows(5, m * k);
      std::vector<bf16> wide(static_cast<size_t>(m * ldx), bf16{0x7FC0});
      for (int64_t i = 0; i < m; ++i) std::copy_n(&x[i * k], k, &wide[i * ldx]);
      const auto expected = product(x.data(), m, s.w);
      std::vector<float> y(static_cast<size_t>(m * ldy), 7.0f);
      cpu::gemm(pool(),
                {.x = wide.data(), .m = m, .ldx = ldx, .w = s.w, .y_f32 = y.data(), .y_bf16 = nullptr, .ldy = ldy});
      for (int64_t i = 0; i < m; ++i) {
        EXPECT_TRUE(same_bits(&y[i * ldy], &expected[i * n], n));
        for (int64_t j = n; j < ldy; ++j) EXPECT_EQ(y[static_cast<size_t>(i * ldy + j)], 7.0f);
      }
    }
  }
}

TEST(Gemm, RowsOfAWeightAreThatPartOfTheProduct) {
  for (const WeightKind kind : kKinds) {
    const StoredWeight s = random_weight(4, kind, 160, 96);
    const auto x = random_rows(6, 3 * 96);
    const auto whole = product(x.data(), 3, s.w);
    const auto part = product(x.data(), 3, cpu::rows_of(s.w, 32, 70));
    for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(&part[i * 70], &whole[i * 160 + 32], 70));
  }
}

// ---- invariance -----------------------------------------------------------------------------------------------------

// A row has the same bits at m = 1, 7, 8, 64, 65, 1000 and 4096, wherever it stands, on one thread and on two.
void check_invariance(WeightKind kind, int64_t n, int64_t k) {
  constexpr int64_t kRows = 4096;
  const StoredWeight s = random_weight(static_cast<uint64_t>(n * k), kind, n, k);
  const auto x = random_rows(11, kRows * k);
  const auto all = product(x.data(), kRows, s.w);
  for (const int64_t m : {1, 7, 8, 64, 65, 1000, 4096}) {
    for (const int threads : {1, 2}) {
      const int64_t first = m == kRows ? 0 : (m * 37 + threads * 5) % (kRows - m);
      const auto some = product(&x[first * k], m, s.w, threads);
      ASSERT_TRUE(same_bits(some.data(), &all[first * n], m * n)) << "m " << m << " threads " << threads;
    }
  }
  // The same rows in another order.
  std::vector<bf16> turned(x.size());
  const auto place = [](int64_t i) { return (i * 1021 + 17) % kRows; };
  for (int64_t i = 0; i < kRows; ++i) std::copy_n(&x[i * k], k, &turned[place(i) * k]);
  const auto y = product(turned.data(), kRows, s.w);
  for (int64_t i = 0; i < kRows; ++i) ASSERT_TRUE(same_bits(&y[place(i) * n], &all[i * n], n)) << i;
}

void check_invariance_of_all_shapes(GemmMode mode) {
  const ModeGuard guard(mode);
  for (const auto& [kind, n, k] : {std::tuple<WeightKind, int64_t, int64_t>{WeightKind::kE4M3, 65, 544},
                                   {WeightKind::kE4M3, 32, 100},
                                   {WeightKind::kE2M1, 130, 128},
                                   {WeightKind::kBF16, 16, 1056},
                                   {WeightKind::kF32, 24, 200}}) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " n " << n << " k " << k);
    check_invariance(kind, n, k);
  }
}

TEST(Gemm, ARowDoesNotDependOnOtherRowsF32) { check_invariance_of_all_shapes(GemmMode::kF32); }
TEST(Gemm, ARowDoesNotDependOnOtherRowsBF16) { check_invariance_of_all_shapes(GemmMode::kBF16); }
TEST(Gemm, ARowDoesNotDependOnOtherRowsOwn) { check_invariance_of_all_shapes(GemmMode::kOwn); }

// oneDNN's tiles, where they are used, give the bits of our own kernel.
TEST(Gemm, TheLibraryIsUsedOnlyWhereItAgrees) {
  const StoredWeight s = random_weight(21, WeightKind::kE4M3, 128, 1100);
  const auto x = random_rows(22, 200 * 1100);
  std::vector<float> library, own;
  {
    const ModeGuard guard(GemmMode::kF32);
    library = product(x.data(), 200, s.w);
  }
  {
    const ModeGuard guard(GemmMode::kOwn);
    own = product(x.data(), 200, s.w);
  }
  EXPECT_TRUE(same_bits(library.data(), own.data(), 200 * 128));
}

// ---- what is not a number, and what nearly is not -------------------------------------------------------------------

TEST(Gemm, NanStaysInItsOutputAndItsRow) {
  for (const GemmMode mode : kModes) {
    const ModeGuard guard(mode);
    for (const int64_t m : {3, 130}) {
      StoredWeight s = random_weight(31, WeightKind::kE4M3, 96, 160);
      auto x = random_rows(32, m * 160);
      const auto clean = product(x.data(), m, s.w);
      s.data[static_cast<size_t>(40 * 160 + 77)] = 0x7F;
      x[static_cast<size_t>(1 * 160 + 5)] = bf16{0x7FC0};
      const auto y = product(x.data(), m, s.w);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t n = 0; n < 96; ++n) {
          const auto at = static_cast<size_t>(i * 96 + n);
          if (n == 40 || i == 1) {
            EXPECT_TRUE(std::isnan(y[at])) << i << " " << n;
          } else {
            EXPECT_EQ(y[at], clean[at]) << i << " " << n;
          }
        }
      }
    }
  }
}

// The weight alone, or its code times a scale, leaves fp32's range; the product does not.
TEST(Gemm, ScalesAtTheEndsOfTheRange) {
  for (const GemmMode mode : kModes) {
    const ModeGuard guard(mode);
    for (const WeightKind kind : {WeightKind::kE4M3, WeightKind::kE2M1}) {
      for (const auto& [scale, exponent] : {std::pair<int, int>{254, -60}, {1, 60}, {0, 60}}) {
        StoredWeight s = random_weight(41, kind, 64, 64);
        for (e8m0& e : s.scale) e = {static_cast<uint8_t>(scale)};
        auto x = random_rows(42, 2 * 64);
        for (bf16& v : x) v = to_bf16(std::ldexp(to_float(v), exponent));
        const auto y = product(x.data(), 2, s.w);
        for (int64_t i = 0; i < 2; ++i) {
          for (int64_t n = 0; n < 64; ++n) {
            double sum = 0, size = 0;
            for (int64_t c = 0; c < 64; ++c) {
              const double term = to_float(x[static_cast<size_t>(i * 64 + c)]) * weight_value(s.w, n, c);
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(i * 64 + n)], sum, 1e-6 * size) << scale << " " << i << " " << n;
          }
        }
      }
    }
  }
}

TEST(Gemm, TheModeIsReadStrictly) {
  EXPECT_EQ(cpu::gemm_mode_of("f32"), GemmMode::kF32);
  EXPECT_EQ(cpu::gemm_mode_of("bf16"), GemmMode::kBF16);
  EXPECT_EQ(cpu::gemm_mode_of("own"), GemmMode::kOwn);
  EXPECT_NE(cpu::gemm_mode_of(""), GemmMode::kOwn);
  EXPECT_THROW(cpu::gemm_mode_of("fp32"), std::runtime_error);
  EXPECT_NE(std::string(cpu::gemm_description()).find("oneDNN"), std::string::npos);
}

}  // namespace
}  // namespace mdi
