// The choice of tokens (kernels/sample_math.h): its weights against the C library, its filters against a sort of
// everything, its draws against the exact distribution.
#include "kernels/cpu/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/sample_math.h"

namespace mdi {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampleRow row_of(float temperature, int32_t top_k = 0, float top_p = 1, float min_p = 0, uint64_t position = 0) {
  return {.seed = 17,
          .sequence = 3,
          .position = position,
          .exponent = sampling::exponent_of(temperature),
          .top_p = top_p,
          .min_p = min_p,
          .top_k = top_k};
}

std::vector<float> random_logits(size_t count, uint32_t seed, bool ties) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& l : logits) l = ties ? std::round(normal(random) * 2) / 2 : normal(random);
  return logits;
}

TEST(Sample, WeightsAreTheSoftmaxNumerators) {
  const int shift = sampling::shift_of(129280);
  EXPECT_EQ(shift, 45);
  EXPECT_EQ(sampling::weight_of(2.5f, 2.5f, sampling::exponent_of(0.7f), shift), uint64_t{1} << shift);
  double worst = 0;
  for (const float temperature : {0.05f, 0.7f, 1.0f, 3.0f, 100.0f}) {
    for (int i = 0; i < 4000; ++i) {
      const float logit = 2.5f - static_cast<float>(i) * 0.0037f;
      const double exact = std::exp((static_cast<double>(logit) - 2.5) / static_cast<double>(temperature));
      const auto weight =
          static_cast<double>(sampling::weight_of(logit, 2.5f, sampling::exponent_of(temperature), shift));
      const double scale = std::exp2(shift);
      EXPECT_LE(weight, exact * scale * (1 + 1e-13));
      EXPECT_GE(weight, exact * scale * (1 - 1e-13) - 1);
      if (exact > 1e-3) worst = std::max(worst, std::abs(weight / scale / exact - 1));
    }
  }
  EXPECT_LT(worst, 1e-10);  // the whole numbers' step; the function itself is closer
  EXPECT_EQ(sampling::weight_of(-kInf, 0, 1, shift), 0u);
  EXPECT_EQ(sampling::weight_of(kNan, 0, 1, shift), 0u);
  EXPECT_EQ(sampling::weight_of(-3e38f, 3e38f, 144269.5, shift), 0u);
}

TEST(Sample, RanksOrderLogitsAndThenIds) {
  const std::vector<float> falling = {kInf, 3e38f, 1.0f, 1e-42f, 0.0f, -1e-42f, -1.0f, -3e38f, -kInf, kNan};
  for (size_t i = 1; i < falling.size(); ++i) {
    EXPECT_GT(sampling::rank_of(falling[i - 1], 129279), sampling::rank_of(falling[i], 0)) << i;
  }
  EXPECT_GT(sampling::rank_of(2, 5), sampling::rank_of(2, 6));
  EXPECT_EQ(sampling::rank_of(-0.0f, 5), sampling::rank_of(0.0f, 5));
  EXPECT_EQ(sampling::rank_of(-kNan, 5), sampling::rank_of(kNan, 5));
  EXPECT_EQ(sampling::id_of(sampling::rank_of(7, 129279)), 129279);
}

TEST(Sample, GreedyRowsAndRowsThatAreNotFinite) {
  std::vector<uint64_t> scratch;
  const SampleRow greedy = row_of(0), warm = row_of(1);
  EXPECT_EQ(cpu::choose(std::vector<float>{1, 3, 3, kNan}, greedy, scratch), 1);
  EXPECT_EQ(cpu::choose(std::vector<float>{-0.0f, 0.0f}, greedy, scratch), 0);
  for (const SampleRow& row : {greedy, warm}) {
    EXPECT_EQ(cpu::choose(std::vector<float>{1, kInf, 2}, row, scratch), kNotFinite);
    EXPECT_EQ(cpu::choose(std::vector<float>{kNan, kNan}, row, scratch), kNotFinite);
    EXPECT_EQ(cpu::choose(std::vector<float>{-kInf, -kInf}, row, scratch), kNotFinite);
    EXPECT_EQ(cpu::choose(std::vector<float>{-kInf, -5, kNan}, row, scratch), 1);
  }
}

// What the filters keep, by sorting everything and adding up in that order.
std::vector<uint64_t> kept_by_sorting(const std::vector<float>& logits, const SampleRow& row) {
  const int shift = sampling::shift_of(static_cast<int64_t>(logits.size()));
  const float largest = logits[static_cast<size_t>(cpu::argmax(logits))];
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (std::isnan(logits[a]) || std::isnan(logits[b])) {
      return std::isnan(logits[a]) == std::isnan(logits[b]) ? a < b : std::isnan(logits[b]);
    }
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < order.size()) order.resize(static_cast<size_t>(row.top_k));
  const auto weight = [&](size_t i) { return sampling::weight_of(logits[i], largest, row.exponent, shift); };
  uint64_t all = 0;
  for (const size_t i : order) all += weight(i);
  std::vector<uint64_t> kept(logits.size());
  uint64_t sum = 0;
  for (const size_t i : order) {
    if (row.top_p < 1 && static_cast<double>(sum) >= static_cast<double>(row.top_p) * static_cast<double>(all)) break;
    sum += weight(i);
    const bool likely = static_cast<double>(weight(i)) >= static_cast<double>(row.min_p) * std::exp2(shift);
    kept[i] = likely ? weight(i) : 0;
  }
  return kept;
}

TEST(Sample, FiltersKeepWhatASortOfEverythingKeeps) {
  std::vector<uint64_t> weights;
  for (uint32_t seed = 0; seed < 6; ++seed) {
    std::vector<float> logits = random_logits(seed < 3 ? 3001 : 37, seed, seed % 2 == 1);
    if (seed % 3 == 2) {
      for (size_t i = 0; i < logits.size(); i += 5) logits[i] = i % 2 == 0 ? -kInf : kNan;
    }
    const float largest = logits[static_cast<size_t>(cpu::argmax(logits))];
    for (const int32_t top_k : {0, 1, 2, 30, 700, 5000}) {
      for (const float top_p : {1.0f, 0.999f, 0.9f, 0.5f, 0.01f}) {
        for (const float min_p : {0.0f, 0.001f, 0.3f, 1.0f}) {
          for (const float temperature : {0.2f, 1.0f, 50.0f}) {
            const SampleRow row = row_of(temperature, top_k, top_p, min_p);
            const auto expected = kept_by_sorting(logits, row);
            const uint64_t total = cpu::kept_weights(logits, row, largest, weights);
            ASSERT_EQ(weights, expected) << seed << " " << top_k << " " << top_p << " " << min_p;
            uint64_t sum = 0;
            for (const uint64_t w : weights) sum += w;
            ASSERT_EQ(total, sum);
            const int32_t token = cpu::choose(logits, row, weights);
            ASSERT_GT(expected[static_cast<size_t>(token)], 0u);
          }
        }
      }
    }
  }
}

// Chi-square of draws at many positions against the exact distribution.
TEST(Sample, DrawsFollowTheExactDistribution) {
  constexpr int kDraws = 200000;
  std::vector<float> logits = random_logits(40, 5, false);
  logits[7] = -kInf;
  logits[11] = kNan;
  std::vector<uint64_t> scratch;
  for (const auto& [temperature, top_k, top_p, min_p] : {std::tuple{1.0f, 0, 1.0f, 0.0f},
                                                         {2.5f, 0, 1.0f, 0.0f},
                                                         {1.5f, 12, 1.0f, 0.0f},
                                                         {1.5f, 0, 0.9f, 0.0f},
                                                         {1.5f, 0, 1.0f, 0.05f},
                                                         {1.5f, 20, 0.95f, 0.02f}}) {
    std::vector<int> counts(logits.size());
    SampleRow row = row_of(temperature, top_k, top_p, min_p);
    for (row.position = 0; row.position < kDraws; ++row.position) {
      ++counts[static_cast<size_t>(cpu::choose(logits, row, scratch))];
    }
    // In double, from the C library's exponential, with the filters' set as found above.
    const auto kept = kept_by_sorting(logits, row);
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (kept[i] > 0) sum += std::exp(static_cast<double>(logits[i]) / static_cast<double>(temperature));
    }
    double chi = 0;
    int cells = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (kept[i] == 0) {
        ASSERT_EQ(counts[i], 0) << i;
        continue;
      }
      const double expected =
          kDraws * std::exp(static_cast<double>(logits[i]) / static_cast<double>(temperature)) / sum;
      if (expected < 5) continue;
      chi += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++cells;
    }
    // Mean cells - 1, deviation sqrt(2 (cells - 1)): five deviations.
    EXPECT_LT(chi, cells - 1 + 5 * std::sqrt(2.0 * (cells - 1))) << temperature << " " << top_k << " " << top_p;
    EXPECT_GT(chi, 0);
  }
}

TEST(Sample, TheOperationChoosesEachRowByItself) {
  const auto context = make_cpu_context(2);
  constexpr int32_t kRows = 7;
  constexpr int64_t kVocab = 515;
  const auto logits = random_logits(kRows * kVocab, 9, false);
  std::vector<SampleRow> rows;
  for (int32_t i = 0; i < kRows; ++i) rows.push_back(row_of(i % 2 == 0 ? 0.8f : 0.0f, i, 0.95f, 0, 100 + i));
  rows[3].wanted = 0;
  std::vector<int32_t> chosen(kRows, -9);
  context->ops->sample(
      *context, {.rows = kRows, .vocab = kVocab, .logits = logits.data(), .row = rows.data(), .chosen = chosen.data()});
  std::vector<uint64_t> scratch;
  for (int32_t i = 0; i < kRows; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::span row(logits.data() + at * kVocab, kVocab);
    EXPECT_EQ(chosen[at], i == 3 ? kNotWanted : cpu::choose(row, rows[at], scratch)) << i;
  }

  const std::vector<int32_t> place = {4, 0, 2}, source = {1, 2, 0}, from = {11, kNotFinite, 13};
  std::vector<int32_t> token = {90, 91, 92, 93, 94};
  context->ops->place_tokens(
      *context,
      {.count = 3, .place = place.data(), .source = source.data(), .chosen = from.data(), .token = token.data()});
  EXPECT_EQ(token, (std::vector<int32_t>{13, 91, 11, 93, 0}));
}

}  // namespace
}  // namespace mdi
