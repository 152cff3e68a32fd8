// Faults of steps that users of such engines meet: idle ranks, buffers made while serving, work that follows the
// configured maximum instead of the actual lengths, chunk sizes that break the decode latency.
#include <gtest/gtest.h>

#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::listening;
using testing::listening_ops;
using testing::request;
using testing::Served;
using testing::some_tokens;
using testing::tiny_model;

EngineOptions options() {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 600;
  o.max_rows = 128;
  return o;
}

TEST(Steps, AnIdleEngineStepsAndAnEmptyStepOfTheModelIsLegal) {
  Served served(options());
  EXPECT_FALSE(served.engine->step());
  EXPECT_FALSE(served.engine->step());
  const auto context = make_cpu_context(1);
  Runner runner(*context, tiny_model(),
                {.slots = 2, .blocks = 4, .snapshots = 0, .max_rows = 8, .max_samples = 2, .max_length = 256});
  runner.start({}, ReplayForm::kAfterLastSource);
  EXPECT_TRUE(runner.fetch().empty());
  runner.commit({});
}

TEST(Steps, AStepWithoutAnySampledRowIsLegal) {
  EngineOptions o = options();
  o.max_rows = 16;
  Served served(o);
  const RequestId id = served.submit(request(some_tokens(50, 1), 2));
  served.engine->step();  // the first chunk, of nobody's last token
  EXPECT_EQ(served.answer(id).events, 0);
  EXPECT_EQ(served.engine->metrics().steps, 1);
  served.engine->run();
  EXPECT_EQ(served.answer(id).tokens, alone(some_tokens(50, 1), 2));
}

// Prefill, decode, drafts, prefix hits, forks, preemption: all in buffers that are there from the start.
TEST(Steps, ServingAllocatesNoDeviceMemory) {
  listening() = {};
  EngineOptions o = options();
  o.snapshot_min_tokens = 1;
  o.blocks = 64;
  o.draft_always = true;
  o.preempt_every = 9;
  Served served(o, nullptr, &listening_ops());
  const int64_t at_start = listening().allocations;
  EXPECT_GT(at_start, 10);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < 6; ++i) {
      Request r = request(some_tokens(40 + 50 * i, i), 20);
      r.n = i % 3 == 0 ? 3 : 1;
      r.logprobs = 2;
      served.submit(std::move(r));
    }
    served.engine->run();
  }
  const EngineMetrics m = served.engine->metrics();
  EXPECT_GT(m.hits, 0);
  EXPECT_GT(m.preemptions, 0);
  EXPECT_GT(m.draft_calls, 0);
  EXPECT_EQ(m.ended_length, 20);
  EXPECT_EQ(listening().allocations, at_start);
}

// A short request on an engine that could serve a million tokens costs what a short request costs.
TEST(Steps, LaunchSizesFollowTheActualLengths) {
  listening() = {};
  EngineOptions o = options();
  o.slots = 1;
  o.max_length = 1048576;
  o.blocks = 8193;
  o.snapshots = 0;
  Served served(o, nullptr, &listening_ops());
  served.submit(request(some_tokens(100, 1), 10));
  served.engine->run();
  EXPECT_EQ(listening().largest_table, 1);  // blocks that any stage may look at
  EXPECT_EQ(listening().largest_rows, 100);
  served.submit(request(some_tokens(300, 1), 10));
  served.engine->run();
  EXPECT_EQ(listening().largest_table, 3);
}

// A long prompt arrives while others decode: it is prefilled in parts, and the others get a token in every step.
TEST(Steps, DecodeGoesOnWhileALongPromptIsPrefilled) {
  EngineOptions o = options();
  o.draft = false;
  o.max_rows = 64;
  Served served(o);
  const RequestId first = served.submit(request(some_tokens(20, 1), 100));
  while (served.answer(first).tokens.size() < 3) served.engine->step();
  const RequestId second = served.submit(request(some_tokens(500, 2), 5));
  size_t before = served.answer(first).tokens.size();
  int steps = 0;
  while (served.answer(second).tokens.empty()) {
    served.engine->step();
    ++steps;
    ASSERT_EQ(served.answer(first).tokens.size(), ++before);
  }
  EXPECT_GE(steps, 8);
  served.engine->run();
  EXPECT_EQ(served.answer(second).tokens, alone(some_tokens(500, 2), 5));
}

// The engine learns what rows cost on a machine where each takes a millisecond, and then keeps the target.
TEST(Steps, ChunksAreChosenSoThatDecodeKeepsItsLatencyTarget) {
  listening() = {};
  double time = 0;
  EngineOptions o = options();
  o.draft = false;
  o.max_rows = 256;
  o.snapshots = 0;
  o.tpot_target = 0.040;
  o.clock = [&time] { return time; };
  Served served(o, nullptr, &listening_ops());
  int64_t rows = 0;
  std::vector<double> beside_decode;
  listening().on_logits = [&](int32_t sample, std::span<float>) {
    if (sample == 0) time += 0.005 + 0.001 * static_cast<double>(listening().largest_rows);
    rows += listening().largest_rows;
  };
  const RequestId decoding = served.submit(request(some_tokens(5, 1), 400));
  for (uint32_t i = 0; i < 6; ++i) served.submit(request(some_tokens(500, 10 + i), 2));
  while (!served.answer(decoding).end.has_value()) {
    listening().largest_rows = 0;
    const double start = time;
    const int64_t prefill = served.engine->metrics().prefill_tokens;
    served.engine->step();
    if (served.engine->metrics().prefill_tokens > prefill) beside_decode.push_back(time - start);
  }
  listening() = {};
  ASSERT_GT(beside_decode.size(), 40u);
  int over = 0;
  double sum = 0;
  const size_t learnt = beside_decode.size() / 2;
  for (size_t i = learnt; i < beside_decode.size(); ++i) {
    over += beside_decode[i] > 0.042 ? 1 : 0;
    sum += beside_decode[i];
  }
  EXPECT_EQ(over, 0);
  EXPECT_GT(sum / static_cast<double>(beside_decode.size() - learnt), 0.025) << "the room for prefill is not used";
}

TEST(Steps, OptionsThatContradictEachOtherAreRefusedAtStart) {
  const auto refuses = [](const char* names, auto change) {
    EngineOptions o = options();
    change(o);
    try {
      Served served(o);
      ADD_FAILURE() << "accepted: " << names;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(names), std::string::npos) << e.what();
    }
  };
  refuses("slots", [](EngineOptions& o) { o.slots = 0; });
  refuses("max_rows", [](EngineOptions& o) { o.max_rows = 3; });
  refuses("max_length", [](EngineOptions& o) { o.max_length = 1048577; });
  refuses("blocks", [](EngineOptions& o) { o.blocks = 5; });  // 600 tokens take five, and one to copy
  refuses("tpot_target", [](EngineOptions& o) { o.tpot_target = std::nan(""); });
  refuses("replay", [](EngineOptions& o) { o.replay.rows = -1; });
  refuses("snapshots", [](EngineOptions& o) { o.snapshots = -1; });
}

// Blocks for one sequence only: everybody is served all the same, one after the other where it must be.
TEST(Steps, APoolForOneSequenceServesMany) {
  EngineOptions o = options();
  o.blocks = 6;
  o.draft = false;
  Served served(o);
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 6; ++i) ids.push_back(served.submit(request(some_tokens(560, i), 40)));
  served.engine->run();
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(served.answer(ids[i]).tokens, alone(some_tokens(560, i), 40)) << i;
  }
  served.expect_nothing_held();
}

}  // namespace
}  // namespace mdi
