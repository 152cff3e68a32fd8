#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mdi {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 3.0f, -2.0f, 0.5f};

std::vector<int32_t> tokens_of(const std::vector<TokenProbability>& d) {
  std::vector<int32_t> tokens;
  for (const auto& t : d) tokens.push_back(t.token);
  return tokens;
}

double sum_of(const std::vector<TokenProbability>& d) {
  double sum = 0;
  for (const auto& t : d) sum += t.probability;
  return sum;
}

TEST(Sampler, GreedyTakesTheLowerIdAmongEquals) {
  EXPECT_EQ(argmax(kLogits), 1);
  EXPECT_EQ(sample(kLogits, {.temperature = 0}, 0, 0), 1);
}

TEST(Sampler, NanIsNeverChosenAndNothingHangs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(argmax(std::vector<float>{nan, 1.0f, nan, 2.0f}), 3);
  const std::vector<float> all_nan = {nan, nan};
  EXPECT_EQ(sample(all_nan, {.temperature = 1}, 0, 0), argmax(all_nan));
}

TEST(Sampler, SoftmaxByFallingProbability) {
  const auto d = distribution(kLogits, {.temperature = 1});
  EXPECT_EQ(tokens_of(d), (std::vector<int32_t>{1, 2, 0, 4, 3}));
  EXPECT_NEAR(sum_of(d), 1, 1e-12);
  EXPECT_NEAR(d[0].probability / d[2].probability, std::exp(2.0), 1e-9);
  const auto hot = distribution(kLogits, {.temperature = 2});
  EXPECT_NEAR(hot[0].probability / hot[2].probability, std::exp(1.0), 1e-9);
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_k = 1})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_k = 3})), (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_p = 0.4f})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_p = 0.5f})), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .min_p = 0.2f})), (std::vector<int32_t>{1, 2}));
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 1, .top_k = 2}, SamplingParams{.temperature = 1, .top_p = 0.8f},
        SamplingParams{.temperature = 1, .min_p = 0.1f}}) {
    EXPECT_NEAR(sum_of(distribution(kLogits, p)), 1, 1e-12);
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const auto d = distribution(kLogits, {.temperature = 1});
  std::vector<int> counts(kLogits.size());
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(sample(kLogits, {.temperature = 1, .seed = 3}, 0, static_cast<uint64_t>(i)))];
  }
  for (const auto& t : d) {
    const double expected = t.probability * kDraws;
    EXPECT_NEAR(counts[static_cast<size_t>(t.token)], expected, 5 * std::sqrt(expected) + 5) << t.token;
  }
}

TEST(Sampler, RandomNumbersAreAFunctionOfTheirPlace) {
  const RandomKey key{.seed = 1, .sequence = 2, .position = 3};
  EXPECT_EQ(random_bits(key, 0), random_bits(key, 0));
  EXPECT_NE(random_bits(key, 0), random_bits(key, 1));
  EXPECT_NE(random_bits(key, 0), random_bits({.seed = 2, .sequence = 2, .position = 3}, 0));
  EXPECT_NE(random_bits(key, 0), random_bits({.seed = 1, .sequence = 3, .position = 3}, 0));
  EXPECT_NE(random_bits(key, 0), random_bits({.seed = 1, .sequence = 2, .position = 4}, 0));
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_NO_THROW(check_sampling({}, "test"));
  for (const SamplingParams& p :
       {SamplingParams{.temperature = -1}, SamplingParams{.temperature = NAN}, SamplingParams{.top_k = -1},
        SamplingParams{.top_p = 0}, SamplingParams{.top_p = 1.5f}, SamplingParams{.min_p = -0.1f},
        SamplingParams{.min_p = 2}}) {
    EXPECT_THROW(check_sampling(p, "test"), std::exception);
  }
}

}  // namespace
}  // namespace mdi
