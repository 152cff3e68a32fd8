// Expanding stored weights: every code under every scale, bit for bit, and the edges of a panel.
#include "kernels/cpu/weight_panel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "random_weights.h"

namespace mdi {
namespace {

using cpu::kPanel;

uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }

// Columns [k0, k1) in all three orders against the definition; NaN is poison: the strips and nothing else are written.
void check_panel(const LinearWeight& w, int64_t first, int64_t k0, int64_t k1) {
  const cpu::WeightPanel p = cpu::weight_panel(w, first);
  const int64_t strip = cpu::strip_width(w.kind);
  const int64_t written = (k1 - k0 + strip - 1) / strip * strip;
  const size_t size = static_cast<size_t>((written + 1) * kPanel);
  std::vector<float> out(size, NAN);
  std::vector<bf16> pairs(size, bf16{0x7FC1}), plain(size, bf16{0x7FC1});
  cpu::expand_panel(p, k0, k1, out.data());
  cpu::expand_panel(p, k0, k1, true, pairs.data());
  cpu::expand_panel(p, k0, k1, false, plain.data());
  for (int64_t k = 0; k < written; ++k) {
    for (int n = 0; n < p.rows; ++n) {
      const double value = k0 + k < w.k ? weight_value(w, first + n, k0 + k) : 0.0;
      const auto expected = static_cast<float>(std::ldexp(value, -p.shift[n]));
      const size_t at = static_cast<size_t>(k * kPanel + n);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[at])) << n << " " << k;
        ASSERT_TRUE(std::isnan(to_float(plain[at]))) << n << " " << k;
        continue;
      }
      ASSERT_EQ(bits_of(out[at]), bits_of(expected)) << n << " " << k;
      if (w.kind == WeightKind::kF32) continue;
      ASSERT_EQ(plain[at].bits, to_bf16(expected).bits) << n << " " << k;
      ASSERT_EQ(pairs[static_cast<size_t>(k / 2 * 2 * kPanel + 2 * n + k % 2)].bits, to_bf16(expected).bits);
    }
  }
  for (size_t i = static_cast<size_t>(written * kPanel); i < size; ++i) {
    ASSERT_TRUE(std::isnan(out[i]));
    ASSERT_EQ(pairs[i].bits, 0x7FC1);
    ASSERT_EQ(plain[i].bits, 0x7FC1);
  }
}

TEST(WeightPanel, EveryE4M3CodeUnderEveryScale) {
  for (const bool nan_codes : {false, true}) {  // with and without: two ways to decode
    for (int scale = 0; scale < 256; ++scale) {
      StoredWeight s = random_weight(7, WeightKind::kE4M3, 64, 256);
      for (int64_t row = 0; row < 64; ++row) {
        for (int64_t k = 0; k < 256; ++k) {
          const auto code = static_cast<uint8_t>(k + row * 5);
          s.data[static_cast<size_t>(row * 256 + k)] = !nan_codes && (code & 0x7F) == 0x7F ? uint8_t{0x80} : code;
        }
      }
      for (e8m0& e : s.scale) e = {static_cast<uint8_t>(scale)};
      check_panel(s.w, 0, 0, 256);
    }
  }
}

TEST(WeightPanel, EveryE2M1ByteUnderEveryScale) {
  for (int scale = 0; scale < 256; ++scale) {
    StoredWeight s = random_weight(8, WeightKind::kE2M1, 64, 512);
    for (size_t i = 0; i < s.data.size(); ++i) s.data[i] = static_cast<uint8_t>(i % 256 + i / 256);
    for (e8m0& e : s.scale) e = {static_cast<uint8_t>(scale)};
    check_panel(s.w, 0, 0, 512);
  }
}

TEST(WeightPanel, AnyShapeOfAnyKind) {
  for (const WeightKind kind : {WeightKind::kE4M3, WeightKind::kE2M1, WeightKind::kBF16, WeightKind::kF32}) {
    for (const int64_t n : {1, 15, 16, 17, 64, 65, 130}) {
      for (const int64_t k : {2, 30, 32, 34, 64, 66, 128, 130, 250}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(kind) << " " << n << " x " << k);
        const StoredWeight s = random_weight(static_cast<uint64_t>(n * 1000 + k), kind, n, k);
        for (int64_t first = 0; first < n; first += kPanel) check_panel(s.w, first, 0, k);
        const int64_t strip = cpu::strip_width(kind);
        if (k > strip) check_panel(s.w, 0, strip, k);
      }
    }
  }
}

// A row with a scale near an end of the range is shifted by its own amount; its neighbours are not.
TEST(WeightPanel, ExtremeScalesAreShiftedRowByRow) {
  StoredWeight s = random_weight(9, WeightKind::kE2M1, 64, 64);
  s.scale[2 * 3] = {254};
  s.scale[2 * 5] = s.scale[2 * 5 + 1] = {1};
  s.scale[2 * 7] = {255};
  const cpu::WeightPanel p = cpu::weight_panel(s.w, 0);
  EXPECT_TRUE(p.shifted);
  EXPECT_GT(p.shift[3], 0);
  EXPECT_LT(p.shift[5], 0);
  for (const int row : {0, 2, 4, 6, 7, 8, 63}) EXPECT_EQ(p.shift[row], 0) << row;
  check_panel(s.w, 0, 0, 64);
}

}  // namespace
}  // namespace mdi
