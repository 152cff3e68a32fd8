#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Sampler, SoftmaxInAscendingId) {
  const auto d = distribution(kLogits, {.temperature = 1});
  EXPECT_EQ(tokens_of(d), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_NEAR(sum_of(d), 1, 1e-12);
  EXPECT_NEAR(d[1].probability / d[0].probability, std::exp(2.0), 1e-9);
  EXPECT_EQ(d[1].probability, d[2].probability);
  const auto hot = distribution(kLogits, {.temperature = 2});
  EXPECT_NEAR(hot[1].probability / hot[0].probability, std::exp(1.0), 1e-9);
  // Far below the largest one nothing is left, and nothing is divided by nothing.
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1e-3f})), (std::vector<int32_t>{1, 2}));
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_k = 1})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_k = 3})), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_p = 0.4f})), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .top_p = 0.5f})), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(tokens_of(distribution(kLogits, {.temperature = 1, .min_p = 0.2f})), (std::vector<int32_t>{1, 2}));
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 1, .top_k = 2}, SamplingParams{.temperature = 1, .top_p = 0.8f},
        SamplingParams{.temperature = 1, .min_p = 0.1f}}) {
    EXPECT_NEAR(sum_of(distribution(kLogits, p)), 1, 1e-12);
  }
}

TEST(Sampler, ArgmaxIsTheFirstLargestAtEveryLengthAndPlace) {
  for (size_t length : {1u, 2u, 31u, 32u, 33u, 64u, 100u, 515u}) {
    for (size_t at = 0; at < length; ++at) {
      std::vector<float> logits(length, -3.0f);
      logits[at] = 2.0f;
      for (size_t other = at + 1; other < length; other += 7) logits[other] = 2.0f;
      if (at > 0) logits[0] = NAN;
      ASSERT_EQ(argmax(logits), static_cast<int32_t>(at)) << length;
    }
  }
  EXPECT_EQ(argmax(std::vector<float>(40, -INFINITY)), 0);
  EXPECT_EQ(argmax(std::vector<float>(40, NAN)), 0);
  EXPECT_EQ(argmax(std::vector<float>{NAN, -INFINITY, NAN}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-0.0f, 0.0f}), 0);
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

// The filters sort no further than they must; a sort of everything says what they should keep.
TEST(Sampler, FiltersOfALargeRowKeepWhatAFullSortWouldKeep) {
  std::vector<float> logits;
  for (uint32_t i = 0; i < 5000; ++i) {
    logits.push_back(static_cast<float>((i * 2654435761u >> 20) % 997) / 80.0f);  // many equal values
  }
  auto all = distribution(logits, {.temperature = 1});
  ASSERT_EQ(all.size(), logits.size());
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.probability > b.probability; });
  for (const SamplingParams& p : std::vector<SamplingParams>{{.temperature = 1, .top_k = 700},
                                                             {.temperature = 1, .top_p = 0.05f},
                                                             {.temperature = 1, .top_p = 0.9f},
                                                             {.temperature = 1, .top_k = 300, .top_p = 0.7f},
                                                             {.temperature = 1, .min_p = 0.3f},
                                                             {.temperature = 1, .top_p = 0.8f, .min_p = 0.2f}}) {
    double scale = 0;  // of the tokens within top_k
    const size_t k = p.top_k > 0 ? static_cast<size_t>(p.top_k) : all.size();
    for (size_t i = 0; i < k; ++i) scale += all[i].probability;
    double sum = 0;
    std::vector<int32_t> expected;
    for (size_t i = 0; i < k && sum < static_cast<double>(p.top_p); ++i) {
      sum += all[i].probability / scale;
      if (all[i].probability >= static_cast<double>(p.min_p) * all[0].probability) expected.push_back(all[i].token);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(tokens_of(distribution(logits, p)), expected);
  }
}

TEST(Sampler, ADrawFromALargeRowIsThatFromTheWholeDistribution) {
  std::vector<float> logits;
  for (uint32_t i = 0; i < 6000; ++i) logits.push_back(static_cast<float>((i * 2654435761u >> 20) % 997) / 300.0f);
  for (const SamplingParams& p : std::vector<SamplingParams>{
           {.temperature = 1}, {.temperature = 4}, {.temperature = 0.3f}, {.temperature = 1, .top_p = 0.9f}}) {
    const auto whole = distribution(logits, p);
    for (uint64_t position = 0; position < 300; ++position) {
      const double uniform = random_uniform({.seed = 8, .sequence = 1, .position = position}, 0);
      SamplingParams seeded = p;
      seeded.seed = 8;
      ASSERT_EQ(sample(logits, seeded, 1, position), draw(whole, uniform)) << position;
    }
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
        SamplingParams{.min_p = 2}, SamplingParams{.presence_penalty = 2.5f}, SamplingParams{.frequency_penalty = NAN},
        SamplingParams{.repetition_penalty = 0}, SamplingParams{.logit_bias = {{.token = 1, .bias = 101}}}}) {
    EXPECT_THROW(check_sampling(p, "test"), std::exception);
  }
}

}  // namespace
}  // namespace mdi
