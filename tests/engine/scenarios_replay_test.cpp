// Bounded replay in the engine: an approximation, but one that is recorded. Recomputation after preemption, chunks,
// company and prefix hits give the tokens of the same history; what a prefix hit may go on from is what has that
// history.
#include <gtest/gtest.h>

#include "mixed_requests.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::kMixed;
using testing::mixed_prompt;
using testing::mixed_sampling;
using testing::mixed_tokens;
using testing::mixed_variants;
using testing::MixedVariant;
using testing::request;
using testing::run_mixed;
using testing::Served;
using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

constexpr int32_t kRows = 24;

Context& context() {
  static const std::unique_ptr<CpuContext> made = make_cpu_context(1);
  return *made;
}

EngineOptions options(ReplayForm form = ReplayForm::kAfterLastSource) {
  EngineOptions o;
  o.slots = 6;
  o.max_length = 700;
  o.max_rows = 512;
  o.draft = false;
  o.snapshots = 0;
  o.replay = {.rows = kRows, .form = form};
  return o;
}

std::vector<std::vector<int32_t>> tokens_of(EngineOptions o, const std::vector<Request>& requests) {
  Served served(std::move(o));
  std::vector<RequestId> ids;
  ids.reserve(requests.size());
  for (const Request& r : requests) ids.push_back(served.submit(r));
  served.engine->run();
  std::vector<std::vector<int32_t>> all;
  for (RequestId id : ids) all.push_back(served.answer(id).tokens);
  served.expect_nothing_held();
  return all;
}

const std::vector<std::vector<int32_t>>& alone_with_replay() {
  static const auto all = [] {
    EngineOptions o = options();
    o.slots = 1;
    std::vector<Request> requests;
    for (int i = 0; i < kMixed; ++i)
      requests.push_back(request(mixed_prompt(i), mixed_tokens(i), mixed_sampling(i, false)));
    return tokens_of(o, requests);
  }();
  return all;
}

// The log-probabilities of the same tokens: other bits where rows were dropped, the same ones where none were.
TEST(Replay, IsAnApproximationForLongPromptsAndExactForShortOnes) {
  for (const int64_t length : {1, 23, 24, 25, 60, 200}) {
    std::vector<std::vector<float>> both;
    for (const int32_t rows : {0, kRows}) {
      EngineOptions o = options();
      o.replay.rows = rows;
      Served served(o);
      Request r = request(some_tokens(length, 3), 4);
      r.logprobs = 0;
      const RequestId id = served.submit(std::move(r));
      served.engine->run();
      std::vector<float> found;
      for (const Logprobs& l : served.answer(id).logprobs) found.push_back(l.logprob);
      ASSERT_EQ(found.size(), 4u);
      both.push_back(std::move(found));
    }
    EXPECT_EQ(both[0] == both[1], length <= kRows) << length;
  }
}

// Batched, chunked, preempted, with hits of lower-only snapshots: the tokens of each request alone under replay.
TEST(Replay, GivesTheSameTokensInEveryWay) {
  for (MixedVariant v : mixed_variants()) {
    if (v.options.draft) continue;
    const bool wanted =
        v.name == "Batched" || v.name == "ChunksOf13" || v.name == "Preempted" || v.name == "PrefixHits";
    if (!wanted) continue;
    v.options.replay.rows = kRows;
    const auto run = run_mixed(context(), tiny_model(), v, alone_with_replay());
    EXPECT_EQ(run.wrong, 0) << v.name << ": " << run.first_wrong;
    EXPECT_TRUE(run.clean);
    if (v.missing) {
      EXPECT_EQ(v.missing(run.metrics), "") << v.name;
    }
  }
}

TEST(Replay, TheStrongerFormGivesTheSameTokens) {
  EngineOptions o = options(ReplayForm::kFromLastSource);
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) requests.push_back(request(mixed_prompt(i), mixed_tokens(i), mixed_sampling(i, false)));
  const auto found = tokens_of(o, requests);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(found[i], alone_with_replay()[i]) << i;
}

// A conversation goes on from the answer's end, whose state was made by replay: that history is recorded, so however
// the second turn is interrupted, and whether its snapshots are still there or not, it goes on as it began.
TEST(Replay, ASecondTurnKeepsItsRecordedHistoryThroughPreemption) {
  const auto first_prompt = some_tokens(260, 1);
  std::vector<std::vector<int32_t>> seen;
  for (const int32_t preempt_every : {0, 4, 7}) {
    for (const int32_t snapshots : {2, 64}) {
      EngineOptions o = options();
      o.snapshots = snapshots;
      o.snapshot_min_tokens = 1;
      o.preempt_every = preempt_every;
      Served served(o);
      const RequestId first = served.submit(request(first_prompt, 30));
      served.engine->run();
      auto next = first_prompt;
      const auto& answer = served.answer(first).tokens;
      next.insert(next.end(), answer.begin(), answer.end());
      const auto more = some_tokens(90, 5);
      next.insert(next.end(), more.begin(), more.end());
      // The second turn, and beside it something older that is never the one to be preempted.
      const RequestId old = served.submit(request(some_tokens(40, 8), 60));
      const RequestId second = served.submit(request(next, 40));
      served.engine->run();
      EXPECT_GT(served.answer(second).usage.cached_tokens, 260) << "the second turn did not go on from the answer";
      if (preempt_every > 0) {
        EXPECT_GT(served.engine->metrics().preemptions, 3);
      }
      EXPECT_EQ(served.answer(old).end, EndReason::kLength);
      seen.push_back(served.answer(second).tokens);
    }
  }
  for (const auto& tokens : seen) EXPECT_EQ(tokens, seen[0]);
}

}  // namespace
}  // namespace mdi
