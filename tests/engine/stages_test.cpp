// A step's time by stage: what stages add up to, which operation is part of which, and that a step that is measured
// gives the bits and the tokens of one that is not.
#include "engine/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "../model/recording_ops.h"
#include "core/error.h"
#include "engine/stage_ops.h"
#include "mixed_requests.h"
#include "serving.h"
#include "ticking_ops.h"

namespace mdi {
namespace {

using testing::mixed_alone;
using testing::mixed_variants;
using testing::MixedVariant;
using testing::RecordingOps;
using testing::request;
using testing::Served;
using testing::some_tokens;
using testing::TickingOps;
using testing::tiny_model;

double sum(const PerStage<double>& stages) { return std::accumulate(stages.begin(), stages.end(), 0.0); }

RunnerSizes sizes(bool measure = true) {
  return {.slots = 2, .blocks = 12, .max_rows = 256, .max_samples = 16, .max_length = 600, .measure = measure};
}

// One sequence in slot 0 that samples its last two tokens.
struct Sequence {
  std::vector<int32_t> blocks = testing::iota_blocks(3, 5);
  int32_t length = 0;

  std::vector<float> step(Runner& runner, const std::vector<int32_t>& tokens, bool measured, int32_t replay_from = 0) {
    const auto count = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> samples = {std::max(count - 2, 0), count - 1};
    StepSequence s;
    s.slot = 0;
    s.start = length;
    s.tokens = tokens;
    s.blocks = blocks;
    s.sample_tokens = std::span(samples).last(count > 1 ? 2 : 1);
    s.replay_from = replay_from;
    runner.start(std::span(&s, 1), ReplayForm::kAfterLastSource, {}, measured);
    const std::span<const float> logits = runner.fetch();
    std::vector<float> kept(logits.begin(), logits.end());
    runner.commit(std::vector<int32_t>{count});
    length += count;
    return kept;
  }
};

TEST(Stages, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (size_t i = 0; i < kStages; ++i) names.insert(stage_name(static_cast<Stage>(i)));
  EXPECT_EQ(names.size(), kStages);
  EXPECT_EQ(names.count("?"), 0u);
  std::set<std::string> parts;
  for (size_t i = 0; i < kHostParts; ++i) parts.insert(host_part_name(static_cast<HostPart>(i)));
  EXPECT_EQ(parts.size(), kHostParts);
  EXPECT_EQ(parts.count("?"), 0u);
}

// One operation a stage and layer, and the mark behind it: two ticks.
TEST(Stages, AreThoseOfTheOperationsAndAddUpToForwardAndCommit) {
  const auto context = make_cpu_context(2);
  TickingOps ops(*context);
  const ModelConfig& c = tiny_model().config();
  {
    Runner runner(*context, tiny_model(), sizes());
    Sequence sequence;
    sequence.step(runner, some_tokens(150, 1), false);
    EXPECT_FALSE(runner.take_stages().has_value());
    for (const std::vector<int32_t>& tokens : {some_tokens(90, 2), some_tokens(1, 3)}) {
      // What a step takes besides: the mark that a runner sets for itself when tokens are chosen, after the first and
      // before the last of the stages' marks; and from the end of forward to the start of commit one tick, a mark's.
      const int64_t before = ops.ticks;
      sequence.step(runner, tokens, true);
      const auto all = static_cast<double>(ops.ticks - before);
      EXPECT_FALSE(runner.can_measure());
      ops.done = false;
      EXPECT_FALSE(runner.take_stages().has_value());
      ops.done = true;
      const std::optional<PerStage<double>> taken = runner.take_stages();
      ASSERT_TRUE(taken.has_value());
      EXPECT_FALSE(runner.take_stages().has_value());
      EXPECT_TRUE(runner.can_measure());
      const PerStage<double>& stages = *taken;
      EXPECT_EQ(sum(stages), all - 2);  // the first mark's own tick, and that between forward and commit
      const double layers = c.n_layers;
      EXPECT_EQ(stages[Stage::kAttention], 2 * layers);
      EXPECT_EQ(stages[Stage::kGate], 2 * layers);
      EXPECT_EQ(stages[Stage::kShared], 2 * layers);
      EXPECT_EQ(stages[Stage::kEngram], 3 * static_cast<double>(c.engram_layer_ids.size()));
      EXPECT_GE(stages[Stage::kRouted], layers);
      EXPECT_GT(stages[Stage::kExchange], stages[Stage::kRouted]);  // before and behind each expert
      EXPECT_GT(stages[Stage::kProjections], 4 * layers);
      EXPECT_GT(stages[Stage::kStream], 4 * layers);
      EXPECT_GT(stages[Stage::kIndexScores], 0);
      EXPECT_GT(stages[Stage::kSelection], 0);
      EXPECT_GT(stages[Stage::kOther], static_cast<double>(tiny_model().draft_stages()) + layers);
      EXPECT_EQ(stages[Stage::kReplayTail], 0);
    }
  }
  EXPECT_EQ(ops.marks_there, 0);
}

TEST(Stages, OfTheLayersThatComputeTheKeptRowsAreTheReplayTail) {
  const auto context = make_cpu_context(2);
  TickingOps ops(*context);
  const ModelConfig& c = tiny_model().config();
  const double below = c.kv_source_layers.back() + 1.0, above = c.n_layers - below;
  ASSERT_GT(above, 0);
  Runner runner(*context, tiny_model(), sizes());
  Sequence sequence;
  const int64_t before = ops.ticks;
  sequence.step(runner, some_tokens(200, 4), true, 180);
  const auto all = static_cast<double>(ops.ticks - before);
  const std::optional<PerStage<double>> stages = runner.take_stages();
  ASSERT_TRUE(stages.has_value());
  EXPECT_EQ(sum(*stages), all - 2);
  EXPECT_EQ((*stages)[Stage::kAttention], 2 * below);
  EXPECT_EQ((*stages)[Stage::kShared], 2 * below);
  EXPECT_GT((*stages)[Stage::kReplayTail], 9 * above);  // operations of a layer
}

TEST(Stages, AStepOfMoreStagesThanThereAreMarksIsNotMeasured) {
  const auto context = make_cpu_context(1);
  const auto ops = std::make_unique<TickingOps>(*context);
  for (const size_t marks : {size_t{0}, size_t{2}, size_t{3}}) {
    StageClock clock(*context, marks);
    clock.start(Stage::kOther, 1);
    clock.begin(Stage::kStream);
    clock.begin(Stage::kStream);
    clock.pause();
    EXPECT_TRUE(clock.passed());
    EXPECT_EQ(clock.read().has_value(), marks == 3);
    clock.start(Stage::kOther, 1);
    clock.pause();
    EXPECT_EQ(clock.read().has_value(), marks >= 2);
  }
}

TEST(Stages, TheContextIsAsBeforeWhenAnOperationFails) {
  EngineOptions o;
  o.slots = 2;
  o.max_length = 300;
  o.measure_every = 1;
  Served served(o, nullptr, &testing::listening_ops());
  testing::listening().head_throws = true;
  served.submit(request(some_tokens(20, 1), 5));
  EXPECT_THROW(served.engine->run(), std::runtime_error);
  testing::listening().head_throws = false;
  EXPECT_EQ(served.context->ops, &testing::listening_ops());
  EXPECT_FALSE(served.context->on_part);
}

TEST(MeasuredSteps, GiveTheBitsOfOthers) {
  const auto context = make_cpu_context(2);
  std::vector<std::vector<float>> logits[2];
  for (const bool measured : {false, true}) {
    Runner runner(*context, tiny_model(), sizes(measured));
    Sequence sequence;
    for (const auto& tokens : {some_tokens(130, 1), some_tokens(61, 2), some_tokens(1, 3), some_tokens(6, 4)}) {
      logits[measured ? 1 : 0].push_back(sequence.step(runner, tokens, measured));
      const std::optional<PerStage<double>> stages = runner.take_stages();
      ASSERT_EQ(stages.has_value(), measured);
      if (!measured) continue;
      EXPECT_GT(*std::min_element(stages->begin(), stages->begin() + 10), 0);  // all but the tail and the rest
    }
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// Every step is measured: with the host's clock, where all others would be recorded, and with time marks.
struct Way {
  const char* variant;
  const char* backend;
};
class Measured : public ::testing::TestWithParam<Way> {};

TEST_P(Measured, StepsGiveTheTokensOfRequestsAlone) {
  const auto context = make_cpu_context(2);
  const auto variants = mixed_variants();
  const auto found = std::find_if(variants.begin(), variants.end(),
                                  [](const MixedVariant& variant) { return variant.name == GetParam().variant; });
  ASSERT_NE(found, variants.end());
  MixedVariant v = *found;
  v.options.measure_every = 1;
  const auto expected = mixed_alone(*context, tiny_model(), v.greedy);
  const std::string backend = GetParam().backend;
  std::unique_ptr<RecordingOps> recording;
  std::unique_ptr<TickingOps> ticking;
  if (backend == "recording") recording = std::make_unique<RecordingOps>(*context);
  if (backend == "ticking") ticking = std::make_unique<TickingOps>(*context);
  const auto run = run_mixed(*context, tiny_model(), v, expected);
  const EngineMetrics& m = run.metrics;
  EXPECT_EQ(run.wrong, 0) << run.first_wrong;
  EXPECT_TRUE(run.clean);
  EXPECT_GT(m.prefill_stages.steps, 0);
  EXPECT_GT(m.decode_stages.steps, 0);
  EXPECT_EQ(m.steps_recorded, 0);
  if (ticking) {
    // The CPU's operations have a part an expert and eight rows, so its longest prompts have more than there are marks.
    EXPECT_GT(m.prefill_stages.steps + m.decode_stages.steps, m.steps / 2);
    return;
  }
  EXPECT_EQ(m.prefill_stages.steps + m.decode_stages.steps, m.steps);
  // What the stages take lies inside these parts, on the same clock.
  const auto host = [&m](HostPart part) { return m.host_seconds[static_cast<size_t>(part)]; };
  EXPECT_LE(sum(m.prefill_stages.seconds) + sum(m.decode_stages.seconds),
            host(HostPart::kLaunch) + host(HostPart::kPublish) + 1e-6);
}
INSTANTIATE_TEST_SUITE_P(Ways, Measured,
                         ::testing::Values(Way{"DraftsPreemptedWithHits", "plain"}, Way{"Batched", "recording"},
                                           Way{"FewAtOnce", "ticking"}),
                         [](const auto& way) { return way.param.variant + std::string("_") + way.param.backend; });

TEST(MeasuredSteps, AreTheSecondOfAKindAndThenOneInSoMany) {
  for (const int32_t every : {0, 3, 64}) {
    EngineOptions o;
    o.slots = 3;
    o.max_length = 300;
    o.draft = false;
    o.measure_every = every;
    Served served(o);
    for (uint32_t i = 0; i < 6; ++i) served.submit(request(some_tokens(20 + 40 * i, i), 20));
    served.engine->run();
    const EngineMetrics m = served.engine->metrics();
    for (const StageTimes* kind : {&m.prefill_stages, &m.decode_stages}) {
      EXPECT_EQ(kind->steps, every == 0 ? 0 : (kind->started + every - 2) / every) << every;
      EXPECT_EQ(sum(kind->seconds) > 0, kind->steps > 0);
    }
    EXPECT_EQ(m.prefill_stages.started + m.decode_stages.started, every == 0 ? 0 : m.steps);
    EXPECT_GT(m.steps, 30);
  }
  EngineOptions negative;
  negative.measure_every = -1;
  EXPECT_THROW(Served{negative}, Error);
}

TEST(MeasuredSteps, SetUpNothing) {
  const auto context = make_cpu_context(1);
  context->ops = &testing::listening_ops();
  const TickingOps ops(*context);
  EngineOptions o;
  o.slots = 3;
  o.max_length = 300;
  o.measure_every = 1;
  Engine engine(*context, tiny_model(), nullptr, o);
  const int64_t marks = ops.marks_made, allocations = testing::listening().allocations;
  EXPECT_GT(marks, 2);
  for (uint32_t i = 0; i < 4; ++i) engine.submit(request(some_tokens(50 * i + 1, i), 12));
  engine.run();
  EXPECT_EQ(engine.metrics().ended_length, 4);
  EXPECT_GT(engine.metrics().decode_stages.steps, 0);
  EXPECT_EQ(ops.marks_made, marks);
  EXPECT_EQ(testing::listening().allocations, allocations);
}

// A clock that goes on by one whenever somebody looks.
TEST(HostParts, AddUpToTheEnginesTime) {
  double time = 0;
  EngineOptions o;
  o.slots = 2;
  o.max_length = 300;
  o.draft_always = true;
  o.stall_limit = 0;
  o.clock = [&time] { return ++time; };
  Served served(o);
  Request masked = request(some_tokens(30, 1), 10);
  masked.allowed = [](std::span<const int32_t>, TokenBits) { return false; };
  served.submit(masked);
  served.submit(request(some_tokens(200, 2), 10));
  double all = 0;
  while (served.engine->step()) all += time - served.engine->metrics().step_started;
  all += time - served.engine->metrics().step_started;
  const EngineMetrics m = served.engine->metrics();
  EXPECT_EQ(std::accumulate(m.host_seconds.begin(), m.host_seconds.end(), 0.0), all);
  for (size_t i = 0; i < kHostParts; ++i) {
    EXPECT_EQ(m.host_seconds[i] > 0, static_cast<HostPart>(i) != HostPart::kImages) << i;
  }
  EXPECT_EQ(m.ended_length, 2);
}

}  // namespace
}  // namespace mdi
