// The same tokens whatever else happens: 64 mixed requests alone, batched, chunked in three ways, preempted, with and
// without prefix hits, forked, with drafts (greedy), with a latency target.
#include <gtest/gtest.h>

#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::request;
using testing::Served;
using testing::slice;
using testing::some_tokens;

constexpr int kRequests = 64;
constexpr int64_t kLength = 420;

// Lengths from one token to several blocks; a third of them share one beginning, another third another one.
std::vector<int32_t> prompt_of(int i) {
  static const auto shared = some_tokens(300, 1);
  static const auto other = some_tokens(300, 2);
  const int64_t length = 1 + (i * 37) % 290;
  std::vector<int32_t> prompt;
  if (i % 3 == 1) prompt = slice(shared, 0, length * 2 / 3);
  if (i % 3 == 2) prompt = slice(other, 0, length * 3 / 4);
  const auto own = some_tokens(length - static_cast<int64_t>(prompt.size()), 100 + static_cast<uint32_t>(i));
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

int32_t tokens_of(int i) { return 3 + (i * 11) % 22; }

// Every other request samples, some of them with everything that there is.
SamplingParams sampling_of(int i) {
  if (i % 2 == 0) return {.temperature = 0};
  SamplingParams p{.temperature = 0.9f, .seed = static_cast<uint64_t>(i)};
  if (i % 4 == 3) p.top_k = 40;
  if (i % 8 == 5) p.top_p = 0.8f;
  if (i % 8 == 7) p.min_p = 0.02f;
  return p;
}

struct Expected {
  std::vector<std::vector<int32_t>> mixed, greedy;
};

const Expected& expected() {
  static const Expected all = [] {
    Expected e;
    for (int i = 0; i < kRequests; ++i) {
      e.mixed.push_back(alone(prompt_of(i), tokens_of(i), sampling_of(i)));
      e.greedy.push_back(i % 2 == 0 ? e.mixed.back() : alone(prompt_of(i), tokens_of(i)));
    }
    return e;
  }();
  return all;
}

EngineOptions options() {
  EngineOptions o;
  o.slots = 12;
  o.max_length = kLength;
  o.max_rows = 512;
  o.snapshots = 0;
  o.draft = false;
  return o;
}

// Submits all requests, some while others run already, and compares what they get.
EngineMetrics expect_same_tokens(EngineOptions o, bool greedy = false, int rounds = 1) {
  Served served(std::move(o));
  for (int round = 0; round < rounds; ++round) {
    std::vector<RequestId> ids(kRequests);
    for (int k = 0; k < kRequests; ++k) {
      const int i = round % 2 == 0 ? k : kRequests - 1 - k;  // back again: what was used last is found first
      const SamplingParams sampling = greedy ? SamplingParams{.temperature = 0} : sampling_of(i);
      ids[static_cast<size_t>(i)] = served.submit(request(prompt_of(i), tokens_of(i), sampling));
      if (k % 5 == 0) served.engine->step();
    }
    served.engine->run();
    const auto& all = greedy ? expected().greedy : expected().mixed;
    for (int i = 0; i < kRequests; ++i) {
      const auto& answer = served.answer(ids[static_cast<size_t>(i)]);
      EXPECT_EQ(answer.tokens, all[static_cast<size_t>(i)]) << "request " << i << ", round " << round;
      EXPECT_EQ(answer.end, EndReason::kLength);
      EXPECT_TRUE(answer.last);
    }
    served.expect_nothing_held();
  }
  return served.engine->metrics();
}

TEST(Invariance, OneAfterTheOther) {
  EngineOptions o = options();
  o.slots = 1;
  expect_same_tokens(o);
}

TEST(Invariance, Batched) {
  const EngineMetrics m = expect_same_tokens(options());
  EXPECT_LT(m.steps, 600);
  EXPECT_GT(m.plans_ahead_used, 0);
}

TEST(Invariance, WithoutPlanningAhead) {
  EngineOptions o = options();
  o.plan_ahead = false;
  EXPECT_EQ(expect_same_tokens(o).plans_ahead_used, 0);
}

class Chunks : public ::testing::TestWithParam<int32_t> {};
TEST_P(Chunks, GiveTheSameTokens) {
  EngineOptions o = options();
  o.max_rows = GetParam();
  expect_same_tokens(o);
}
INSTANTIATE_TEST_SUITE_P(Invariance, Chunks, ::testing::Values(13, 50, 177));

TEST(Invariance, WithALatencyTargetThatCutsPrefillsAnywhere) {
  EngineOptions o = options();
  o.tpot_target = 0.004;
  expect_same_tokens(o);
}

TEST(Invariance, Preempted) {
  EngineOptions o = options();
  o.blocks = 9;  // two or three of the longer sequences
  o.preempt_every = 4;
  const EngineMetrics m = expect_same_tokens(o);
  EXPECT_GT(m.preemptions, 30);
}

TEST(Invariance, WithPrefixHits) {
  EngineOptions o = options();
  o.snapshots = 200;
  o.snapshot_min_tokens = 1;
  const EngineMetrics m = expect_same_tokens(o, false, 2);
  EXPECT_GT(m.hits, kRequests - 2);  // all of the second round but prompts of one token
  EXPECT_GT(m.hit_tokens, m.prompt_tokens / 4);
}

TEST(Invariance, PreemptedWithPrefixHitsAndFewSnapshots) {
  EngineOptions o = options();
  o.snapshots = 7;
  o.snapshot_min_tokens = 1;
  o.blocks = 10;
  o.preempt_every = 7;
  const EngineMetrics m = expect_same_tokens(o, false, 2);
  EXPECT_GT(m.preemptions, 5);
  EXPECT_GT(m.hits, 0);
  EXPECT_GT(m.snapshots_evicted, 0);
}

TEST(Invariance, GreedyWithDrafts) {
  EngineOptions o = options();
  o.draft = true;
  o.draft_always = true;
  const EngineMetrics m = expect_same_tokens(o, true);
  EXPECT_GT(m.accepted[0], 0);
}

TEST(Invariance, GreedyWithDraftsPreemptedAndWithPrefixHits) {
  EngineOptions o = options();
  o.draft = true;
  o.snapshots = 9;
  o.snapshot_min_tokens = 1;
  o.blocks = 10;
  o.preempt_every = 5;
  const EngineMetrics m = expect_same_tokens(o, true, 2);
  EXPECT_GT(m.preemptions, 0);
  EXPECT_GT(m.hits, 0);
}

// The samples of one request share its prompt's blocks; each continues as if it were alone.
TEST(Invariance, Forked) {
  for (const bool tight : {false, true}) {
    EngineOptions o = options();
    if (tight) {
      o.blocks = 9;
      o.slots = 3;
    }
    Served served(o);
    std::vector<RequestId> ids;
    for (int i = 0; i < 12; ++i) {
      Request r = request(prompt_of(i), tokens_of(i), sampling_of(i));
      r.n = 1 + i % 4;
      ids.push_back(served.submit(std::move(r)));
    }
    served.engine->run();
    for (int i = 0; i < 12; ++i) {
      const RequestId id = ids[static_cast<size_t>(i)];
      EXPECT_EQ(served.answer(id).tokens, expected().mixed[static_cast<size_t>(i)]);
      for (int32_t sample = 0; sample < 1 + i % 4; ++sample) {
        const auto& answer = served.answer(id, sample);
        if (i % 2 == 0) {
          EXPECT_EQ(answer.tokens, expected().mixed[static_cast<size_t>(i)]) << sample;
        }
        EXPECT_EQ(static_cast<int32_t>(answer.tokens.size()), tokens_of(i));
        // Other random numbers give another text.
        if (i % 2 == 1 && sample > 0) {
          EXPECT_NE(answer.tokens, served.answer(id).tokens);
        }
      }
    }
    served.expect_nothing_held();
  }
}

TEST(Invariance, ForkedSamplesAreTheSameWithAndWithoutRoom) {
  const auto run = [](int32_t slots, int32_t blocks) {
    EngineOptions o = options();
    o.slots = slots;
    o.blocks = blocks;
    Served served(o);
    Request r = request(prompt_of(10), 20, {.temperature = 1.0f, .seed = 4});
    r.n = 5;
    const RequestId id = served.submit(std::move(r));
    served.submit(request(prompt_of(11), 20));
    served.engine->run();
    std::vector<std::vector<int32_t>> samples;
    for (int32_t i = 0; i < 5; ++i) samples.push_back(served.answer(id, i).tokens);
    return samples;
  };
  const auto roomy = run(8, 0);
  EXPECT_EQ(run(2, 0), roomy);
  EXPECT_EQ(run(6, 6), roomy);
  EXPECT_EQ(run(1, 6), roomy);
}

}  // namespace
}  // namespace mdi
