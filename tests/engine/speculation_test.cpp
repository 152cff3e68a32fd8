// Drafted decoding is lossless: exact distribution when sampling, the same tokens when greedy.
#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "../model/tiny_model.h"
#include "engine/generator.h"

namespace mdi {
namespace {

constexpr int kVocab = 4;
constexpr int kBlock = 3;

using Row = std::vector<TokenProbability>;

// The distribution after `previous` (0..kVocab-1): a bigram model, so that emitted pairs show whether conditioning is
// right.
Row bigram(const double (&table)[kVocab][kVocab], int32_t previous) {
  Row row;
  for (int32_t t = 0; t < kVocab; ++t) {
    if (table[previous][t] > 0) row.push_back({t, table[previous][t]});
  }
  return row;
}

constexpr double kTarget[kVocab][kVocab] = {
    {0.50, 0.25, 0.20, 0.05}, {0.10, 0.60, 0.00, 0.30}, {0.25, 0.25, 0.25, 0.25}, {0.05, 0.05, 0.85, 0.05}};
// Proposes what the target forbids, and never proposes some of what it allows.
constexpr double kDraft[kVocab][kVocab] = {
    {0.20, 0.30, 0.10, 0.40}, {0.30, 0.30, 0.40, 0.00}, {0.70, 0.10, 0.10, 0.10}, {0.00, 0.50, 0.25, 0.25}};

// 200,000 draws of three tokens each, from blocks verified one after the other; chi-square of the triples.
TEST(Speculation, EmitsExactlyTheTargetsDistribution) {
  constexpr int kDraws = 200000;
  std::vector<int> counts(kVocab * kVocab * kVocab);
  for (int n = 0; n < kDraws; ++n) {
    std::vector<int32_t> out;
    int32_t last = 0;  // every sequence starts after token 0
    while (out.size() < 3) {
      const auto position = static_cast<uint64_t>(out.size());
      std::vector<Proposal> proposals;
      int32_t previous = last;
      for (int i = 0; i < kBlock; ++i) {
        Proposal p{.token = 0, .distribution = bigram(kDraft, previous)};
        const RandomKey key{
            .seed = 7, .sequence = static_cast<uint64_t>(n), .position = position + static_cast<uint64_t>(i)};
        p.token = draw(p.distribution, random_uniform(key, kDrawProposal));
        previous = p.token;
        proposals.push_back(p);
      }
      std::vector<Row> targets = {bigram(kTarget, last)};
      for (const Proposal& p : proposals) targets.push_back(bigram(kTarget, p.token));
      const Verdict verdict =
          verify(targets, proposals, {.seed = 7, .sequence = static_cast<uint64_t>(n), .position = position});
      for (int i = 0; i < verdict.accepted; ++i) out.push_back(proposals[static_cast<size_t>(i)].token);
      out.push_back(verdict.next);
      last = out.back();
    }
    ++counts[static_cast<size_t>((out[0] * kVocab + out[1]) * kVocab + out[2])];
  }
  double chi_square = 0;
  int cells = 0;
  for (int a = 0; a < kVocab; ++a) {
    for (int b = 0; b < kVocab; ++b) {
      for (int c = 0; c < kVocab; ++c) {
        const double expected = kDraws * kTarget[0][a] * kTarget[a][b] * kTarget[b][c];
        const double found = counts[static_cast<size_t>((a * kVocab + b) * kVocab + c)];
        if (expected == 0) {
          EXPECT_EQ(found, 0) << a << b << c;
          continue;
        }
        chi_square += (found - expected) * (found - expected) / expected;
        ++cells;
      }
    }
  }
  // Mean cells - 1, standard deviation sqrt(2 (cells - 1)): four deviations is one failure in some 10,000 seeds.
  const double freedom = cells - 1;
  EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom));
}

TEST(Speculation, AWrongRuleWouldBeSeen) {
  // Accepting every proposal gives the draft's distribution; the same statistic on its first token is far off.
  double chi_square = 0;
  for (int t = 0; t < kVocab; ++t) {
    const double expected = 200000 * kTarget[0][t];
    const double found = 200000 * kDraft[0][t];
    chi_square += (found - expected) * (found - expected) / expected;
  }
  EXPECT_GT(chi_square, 1000);
}

std::vector<int32_t> generate(bool draft, SamplingParams sampling, GenerateResult* result = nullptr) {
  auto context = make_cpu_context(2);
  Generator generator(*context, testing::tiny_model(), 400, 64);
  GenerateRequest request;
  request.prompt = testing::some_tokens(45, 9);
  request.max_tokens = 150;
  request.sampling = sampling;
  request.draft = draft;
  GenerateResult r = generator.run(request);
  if (result != nullptr) *result = r;
  return r.tokens;
}

TEST(Speculation, GreedyOutputIsThatOfPlainDecoding) {
  GenerateResult result;
  const auto plain = generate(false, {.temperature = 0});
  EXPECT_EQ(generate(true, {.temperature = 0}, &result), plain);
  EXPECT_EQ(plain.size(), 150u);
  int64_t accepted = 0;
  for (size_t i = 0; i < result.accepted.size(); ++i) {
    EXPECT_LE(result.accepted[i], result.proposed[i]);
    accepted += result.accepted[i];
  }
  EXPECT_EQ(result.decode_steps + accepted, 149);  // each step emits what it accepted and one token of its own
  EXPECT_GT(accepted, 0);
}

TEST(Speculation, SampledOutputIsTheSameForTheSameSeed) {
  const SamplingParams sampling{.temperature = 1.0f, .top_k = 20, .top_p = 0.9f, .min_p = 0.01f, .seed = 5};
  EXPECT_EQ(generate(true, sampling), generate(true, sampling));
  EXPECT_NE(generate(true, sampling), generate(true, {.temperature = 1.0f, .seed = 6}));
}

}  // namespace
}  // namespace mdi
