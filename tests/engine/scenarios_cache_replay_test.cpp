// Stories about bounded replay in the cache: the history of a state is part of what a prefix is known by, and a
// sequence can be computed again from its own.
#include <gtest/gtest.h>

#include "cache_stories.h"

namespace mdi {
namespace {

using namespace testing::stories;
using testing::Answer;
using testing::request;
using testing::Served;
using testing::some_tokens;

// Two layers with windows of 16 come after the last KV source, so from 31 tokens behind the first kept row on
// everything is exact again. These stories happen closer to it.
constexpr int32_t kReplay = 17;

// Under replay a state depends on where prefills ended. A hit takes that over, and a recomputation after a preemption
// gives the very bits again; so does a snapshot that was taken in the middle of a replayed prompt.
TEST(CacheFaults, UnderReplayARecomputationGivesTheRecordedHistoryAgain) {
  EngineOptions o = options();
  o.replay.rows = kReplay;
  o.snapshot_every_blocks = 1;
  // `preempt`: the requests of a turn run side by side and lose their places to one another again and again.
  const auto converse = [&](int32_t preempt) {
    EngineOptions used = o;
    used.preempt_every = preempt;
    Served served(used);
    std::vector<std::vector<int32_t>> conversations(3);
    std::vector<Answer> answers;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      std::vector<RequestId> ids;
      for (uint32_t c = 0; c < 3; ++c) {
        // The second turn is shorter than R and goes on in the windows of the first; the third drops rows again.
        const int64_t count = turn == 1 ? 4 : 150 + 20 * c;
        conversations[c] = join(conversations[c], some_tokens(count, 10 * turn + c));
        ids.push_back(served.submit(telling(conversations[c], 3)));
      }
      served.engine->run();
      for (uint32_t c = 0; c < 3; ++c) {
        answers.push_back(served.answer(ids[c]));
        conversations[c] = join(conversations[c], answers.back().tokens);
      }
    }
    const EngineMetrics m = served.engine->metrics();
    EXPECT_EQ(m.preemptions > 0, preempt > 0);
    EXPECT_GE(m.hits, 6);
    served.expect_nothing_held();
    return answers;
  };
  const auto expected = converse(0);
  for (const int32_t preempt : {2, 5}) {
    const auto found = converse(preempt);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i].usage.cached_tokens, expected[i].usage.cached_tokens) << i;
      expect_same(found[i], expected[i], "every " + std::to_string(preempt) + " steps, request " + std::to_string(i));
    }
  }
}

// The one snapshot that a turn went on from is evicted while it runs, and then it is preempted: all there is to go by
// is what it recorded when it was admitted.
TEST(CacheFaults, UnderReplayAHistoryThatWasTakenOverOutlivesItsSnapshot) {
  EngineOptions o = options();
  o.replay.rows = kReplay;
  o.snapshots = 1;
  const auto opening = some_tokens(150, 15), question = some_tokens(4, 16);
  const auto second_turn = [&](bool disturbed) {
    EngineOptions used = o;
    used.preempt_every = disturbed ? 2 : 0;
    Served served(used);
    const auto prompt = join(join(opening, answer_of(served, telling(opening, 2)).tokens), question);
    served.submit(request(some_tokens(10, 17), 300));  // older, so that the other one is preempted
    served.engine->step();
    const RequestId id = served.submit(telling(prompt));
    while (served.answer(id).tokens.empty()) served.engine->step();
    EXPECT_EQ(served.answer(id).usage.cached_tokens, static_cast<int32_t>(prompt.size()) - 4 - 1);
    if (disturbed) served.submit(request(some_tokens(70, 18), 1));
    served.engine->run();
    EXPECT_EQ(served.engine->metrics().preemptions > 2, disturbed);
    return served.answer(id);
  };
  expect_same(second_turn(true), second_turn(false), "recomputed from its tokens");
}

// The first turn's rows were replayed, so an exact run of the same tokens is another one: the history is really used.
TEST(CacheFaults, AReplayedPrefixIsNotTakenForAnExactOne) {
  EngineOptions replayed = options(), exact = options();
  replayed.replay.rows = kReplay;
  const auto prompt = some_tokens(300, 14);
  Served a(replayed), b(exact);
  const Answer x = answer_of(a, telling(prompt)), y = answer_of(b, telling(prompt));
  ASSERT_FALSE(x.logprobs.empty());
  EXPECT_NE(x.logprobs[0].logprob, y.logprobs[0].logprob);
  expect_same(answer_of(a, telling(prompt)), x, "replayed, with a hit");
  expect_same(answer_of(b, telling(prompt)), y, "exact, with a hit");
  EXPECT_EQ(a.engine->metrics().hits, 1);
  EXPECT_EQ(b.engine->metrics().hits, 1);
}

}  // namespace
}  // namespace mdi
