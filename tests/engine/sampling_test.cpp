// The tokens of one step for one sequence: masks and penalties are functions of committed tokens, also inside a drafted
// block, and what is verified with drafts is what plain decoding would have chosen.
#include "engine/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mdi {
namespace {

constexpr int64_t kVocab = 6;

Proposal greedy(int32_t token) { return {.token = token, .distribution = {{.token = token, .probability = 1.0}}}; }

// Row i prefers token i.
std::vector<float> rows(size_t count) {
  std::vector<float> logits(count * kVocab, 0.0f);
  for (size_t i = 0; i < count; ++i) logits[i * kVocab + i] = 5;
  return logits;
}

const SamplingParams kGreedy{.temperature = 0};

TEST(Sampling, GreedyProposalsAreAcceptedUpToTheFirstWrongOne) {
  SamplingScratch scratch;
  const SamplingSequence s{.params = &kGreedy};
  const std::vector<Proposal> proposals = {greedy(0), greedy(1), greedy(5)};
  const Chosen chosen = choose_tokens(rows(4), kVocab, proposals, s, scratch);
  EXPECT_EQ(chosen.accepted, 2);
  EXPECT_EQ(chosen.tokens, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(choose_tokens(rows(1), kVocab, {}, s, scratch).tokens, std::vector<int32_t>{0});
}

// What a grammar allows is asked for each place with exactly the tokens before it, and rejected ones leave nothing.
TEST(Sampling, GrammarStateIsAFunctionOfCommittedTokensAndDoesNotAdvanceOnRejectedDrafts) {
  std::vector<std::vector<int32_t>> asked;
  const AllowedTokens allowed = [&asked](std::span<const int32_t> generated, TokenBits bits) {
    asked.emplace_back(generated.begin(), generated.end());
    bits[0] = generated.size() == 2 ? 1u << 4 : 0x3Fu;  // the third token must be 4
    return true;
  };
  const std::vector<int32_t> generated = {3};
  SamplingScratch scratch;
  const SamplingSequence s{.params = &kGreedy, .allowed = &allowed, .generated = generated};
  // Row 1 would choose token 1, but after (3, 0) only 4 may come: the draft's 1 is rejected, 4 takes its place.
  const std::vector<Proposal> proposals = {greedy(0), greedy(1)};
  const Chosen chosen = choose_tokens(rows(3), kVocab, proposals, s, scratch);
  EXPECT_EQ(chosen.tokens, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(asked, (std::vector<std::vector<int32_t>>{{3}, {3, 0}, {3, 0, 1}}));
  EXPECT_EQ(generated, std::vector<int32_t>{3});
}

TEST(Sampling, AMaskThatReturnsFalseAllowsEverythingAndAnEmptyOneIsAFault) {
  SamplingScratch scratch;
  const AllowedTokens any = [](std::span<const int32_t>, TokenBits) { return false; };
  const AllowedTokens none = [](std::span<const int32_t>, TokenBits) { return true; };
  EXPECT_EQ(choose_tokens(rows(1), kVocab, {}, {.params = &kGreedy, .allowed = &any}, scratch).tokens.size(), 1u);
  const Chosen fault = choose_tokens(rows(1), kVocab, {}, {.params = &kGreedy, .allowed = &none}, scratch);
  EXPECT_EQ(fault.fault, SamplingFault::kNothingAllowed);
  EXPECT_TRUE(fault.tokens.empty());
}

TEST(Sampling, ARowThatIsNotANumberIsAFaultAndBehindARejectedProposalItIsNot) {
  SamplingScratch scratch;
  const SamplingSequence s{.params = &kGreedy};
  std::vector<float> logits = rows(3);
  for (int64_t i = 2 * kVocab; i < 3 * kVocab; ++i) logits[static_cast<size_t>(i)] = std::nanf("");
  const std::vector<Proposal> wrong = {greedy(5), greedy(5)};
  EXPECT_EQ(choose_tokens(logits, kVocab, wrong, s, scratch).tokens, std::vector<int32_t>{0});
  const std::vector<Proposal> right = {greedy(0), greedy(1)};
  EXPECT_EQ(choose_tokens(logits, kVocab, right, s, scratch).tokens, (std::vector<int32_t>{0, 1}));
  logits[0] = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < kVocab; ++i) logits[static_cast<size_t>(i)] = std::nanf("");
  EXPECT_EQ(choose_tokens(logits, kVocab, {}, s, scratch).fault, SamplingFault::kNotANumber);
}

// Penalties inside a block count the proposals before each place, and only until the call is over.
TEST(Sampling, PenaltiesInADraftedBlockAreThoseOfDecodingTokenByToken) {
  const SamplingParams params{.temperature = 0, .frequency_penalty = 2.0f};
  SamplingScratch scratch;
  std::vector<float> logits(3 * kVocab, 0.0f);
  for (size_t i = 0; i < 3; ++i) {
    logits[i * kVocab + 2] = 3.0f;  // every row prefers 2, then 4
    logits[i * kVocab + 4] = 1.5f;
  }
  TokenHistory history;
  const SamplingSequence s{.params = &params, .history = &history};
  std::vector<int32_t> one_by_one;
  TokenHistory step;
  for (size_t i = 0; i < 3; ++i) {
    const SamplingSequence at{.params = &params, .history = &step};
    one_by_one.push_back(
        choose_tokens(std::span(logits).subspan(i * kVocab, kVocab), kVocab, {}, at, scratch).tokens[0]);
    step.push(one_by_one.back());
  }
  EXPECT_EQ(one_by_one, (std::vector<int32_t>{2, 4, 2}));
  const std::vector<Proposal> proposals = {greedy(2), greedy(4)};
  EXPECT_EQ(choose_tokens(logits, kVocab, proposals, s, scratch).tokens, one_by_one);
  for (const auto& [token, entry] : history.entries()) EXPECT_EQ(entry.generated, 0) << token;
}

TEST(Sampling, LogprobsComeWithEveryTokenAndAreTheModelsOwn) {
  const SamplingParams biased{.temperature = 0, .logit_bias = {{.token = 3, .bias = 50}}};
  SamplingScratch scratch;
  const SamplingSequence s{.params = &biased, .logprobs = 2};
  const Chosen chosen = choose_tokens(rows(1), kVocab, {}, s, scratch);
  ASSERT_EQ(chosen.tokens, std::vector<int32_t>{3});
  ASSERT_EQ(chosen.logprobs.size(), 1u);
  EXPECT_EQ(chosen.logprobs[0].top[0].token, 0);  // before the bias
  EXPECT_LT(chosen.logprobs[0].logprob, -4);
}

TEST(Sampling, TheSameSeedDrawsTheSameTokensWhateverElseIsInTheStep) {
  const SamplingParams params{.temperature = 1, .seed = 9};
  SamplingScratch scratch;
  std::vector<int32_t> first;
  for (uint64_t position = 0; position < 20; ++position) {
    const SamplingSequence s{.params = &params, .sequence = 1, .position = position};
    first.push_back(choose_tokens(rows(1), kVocab, {}, s, scratch).tokens[0]);
  }
  for (uint64_t position = 20; position-- > 0;) {
    const SamplingSequence s{.params = &params, .sequence = 1, .position = position};
    EXPECT_EQ(choose_tokens(rows(1), kVocab, {}, s, scratch).tokens[0], first[position]);
    EXPECT_EQ(sample(rows(1), params, 1, position), first[position]);
  }
}

}  // namespace
}  // namespace mdi
