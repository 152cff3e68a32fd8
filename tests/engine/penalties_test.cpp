// Penalties, biases, allowed tokens and log-probabilities: the rules of each, one by one.
#include "engine/penalties.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/logprobs.h"

namespace mdi {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> penalised(const SamplingParams& params, const TokenHistory& history) {
  std::vector<float> logits = {2.0f, -2.0f, 4.0f, 0.0f, 1.0f};
  apply_penalties(logits, params, history);
  return logits;
}

TokenHistory history() {
  TokenHistory h;
  h.add_prompt(std::vector<int32_t>{0, 1, 1});
  h.push(1);
  h.push(2);
  h.push(2);
  return h;
}

TEST(Penalties, DefaultsChangeNothing) {
  EXPECT_FALSE(has_penalties({}));
  EXPECT_EQ(penalised({}, history()), (std::vector<float>{2, -2, 4, 0, 1}));
}

TEST(Penalties, RepetitionCountsThePromptAndPushesTowardsZeroProbability) {
  EXPECT_EQ(penalised({.repetition_penalty = 2}, history()), (std::vector<float>{1, -4, 2, 0, 1}));
}

TEST(Penalties, PresenceAndFrequencyCountGeneratedTokensOnly) {
  EXPECT_EQ(penalised({.presence_penalty = 0.5f}, history()), (std::vector<float>{2, -2.5f, 3.5f, 0, 1}));
  EXPECT_EQ(penalised({.frequency_penalty = 0.5f}, history()), (std::vector<float>{2, -2.5f, 3, 0, 1}));
  EXPECT_EQ(penalised({.frequency_penalty = -1}, history()), (std::vector<float>{2, -1, 6, 0, 1}));
}

TEST(Penalties, APopTakesBackAPush) {
  const SamplingParams all{.presence_penalty = 1, .frequency_penalty = 0.25f, .repetition_penalty = 1.5f};
  TokenHistory h = history();
  const auto before = penalised(all, h);
  h.push(3);
  h.push(2);
  EXPECT_NE(penalised(all, h), before);
  h.pop(2);
  h.pop(3);
  EXPECT_EQ(penalised(all, h), before);
}

TEST(Penalties, BiasesAddAndTokensOutsideTheVocabularyAreLeftOut) {
  const SamplingParams p{.logit_bias = {{.token = 3, .bias = 7}, {.token = 99, .bias = 1}, {.token = -1, .bias = 1}}};
  EXPECT_TRUE(has_penalties(p));
  EXPECT_EQ(penalised(p, {}), (std::vector<float>{2, -2, 4, 7, 1}));
}

TEST(AllowedTokens, WhatIsNotAllowedIsNeverChosen) {
  std::vector<float> logits(70, 1.0f);
  logits[2] = 9;
  std::vector<uint32_t> bits(token_bit_words(70));
  EXPECT_EQ(bits.size(), 3u);
  bits[0] = 1u << 5;
  bits[2] = 1u << 1;  // token 65
  logits[65] = 2;
  EXPECT_TRUE(apply_allowed(logits, bits));
  EXPECT_EQ(logits[2], -kInf);
  EXPECT_EQ(argmax(logits), 65);
  EXPECT_EQ(distribution(logits, {.temperature = 1}).size(), 2u);
}

TEST(AllowedTokens, ANarrowMaskForbidsTheRestAndAnEmptyOneLeavesNothing) {
  std::vector<float> logits(40, 1.0f);
  const std::vector<uint32_t> one_word = {1u};
  EXPECT_TRUE(apply_allowed(logits, one_word));
  EXPECT_EQ(logits[39], -kInf);
  const std::vector<uint32_t> none = {2u, 0u};
  EXPECT_FALSE(apply_allowed(logits, none));  // token 1 is at -inf already
}

TEST(Logprobs, AreThoseOfTheModelsDistribution) {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, -1.0f};
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  const Logprobs found = logprobs_of(logits, 3, 3);
  EXPECT_NEAR(found.logprob, -1.0 - std::log(sum), 1e-6);
  ASSERT_EQ(found.top.size(), 3u);
  EXPECT_EQ(found.top[0].token, 1);  // equal: the lower id first
  EXPECT_EQ(found.top[1].token, 2);
  EXPECT_EQ(found.top[2].token, 0);
  EXPECT_NEAR(found.top[0].logprob, 2.0 - std::log(sum), 1e-6);
  EXPECT_TRUE(logprobs_of(logits, 0, 0).top.empty());
  EXPECT_EQ(logprobs_of(logits, 0, 20).top.size(), logits.size());
}

}  // namespace
}  // namespace mdi
