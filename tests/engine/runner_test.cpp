// Recorded steps: which shapes there are, and that requests get the tokens that they get alone when their steps are
// padded and run from a record.
#include "engine/runner.h"

#include <gtest/gtest.h>

#include "../model/recording_ops.h"
#include "mixed_requests.h"

namespace mdi {
namespace {

using testing::mixed_alone;
using testing::mixed_variants;
using testing::MixedVariant;
using testing::RecordingOps;
using testing::tiny_model;

std::string text(const std::vector<StepShape>& shapes) {
  std::string all;
  for (const StepShape& s : shapes) {
    all += std::to_string(s.sequences) + "," + std::to_string(s.rows) + "," + std::to_string(s.max_blocks) + " ";
  }
  return all;
}

TEST(RecordedShapes, DoubleSequencesAndTakeBlocksToVerify) {
  EXPECT_EQ(text(recorded_shapes(6, 1, 512, 4)), "1,1,4 2,2,4 4,4,4 6,6,4 ");
  EXPECT_EQ(text(recorded_shapes(3, 6, 512, 4)), "1,1,4 2,2,4 3,3,4 1,6,4 2,12,4 3,18,4 ");
}

TEST(RecordedShapes, GrowWithTheContext) {
  EXPECT_EQ(text(recorded_shapes(1, 1, 512, 16)), "1,1,16 ");
  EXPECT_EQ(text(recorded_shapes(1, 1, 512, 17)), "1,1,16 1,1,17 ");
  EXPECT_EQ(text(recorded_shapes(1, 1, 512, 8192)), "1,1,16 1,1,128 1,1,1024 1,1,8192 ");
}

TEST(RecordedShapes, StayWithinTheRowsOfAStepAndHoldTheirPadding) {
  EXPECT_EQ(text(recorded_shapes(12, 6, 13, 4)), "1,1,4 2,2,4 4,4,4 1,6,4 8,8,4 2,12,4 12,12,4 4,13,4 8,13,4 12,13,4 ");
  EXPECT_EQ(text(recorded_shapes(8, 1, 3, 4)), "1,1,4 2,2,4 3,3,4 ");
  EXPECT_EQ(text(recorded_shapes(1, 300, 512, 1)), "1,1,1 1,300,3 ");
}

class Recorded : public ::testing::TestWithParam<const char*> {};

TEST_P(Recorded, StepsGiveTheTokensOfRequestsAlone) {
  const auto context = make_cpu_context(2);
  const auto variants = mixed_variants();
  const auto v = std::find_if(variants.begin(), variants.end(),
                              [](const MixedVariant& variant) { return variant.name == GetParam(); });
  ASSERT_NE(v, variants.end());
  const auto expected = mixed_alone(*context, tiny_model(), v->greedy);
  const RecordingOps ops(*context);
  const auto run = run_mixed(*context, tiny_model(), *v, expected);
  EXPECT_EQ(run.wrong, 0) << run.first_wrong;
  EXPECT_TRUE(run.clean);
  EXPECT_GT(run.metrics.steps_recorded, run.metrics.steps / 3);
  EXPECT_LT(run.metrics.steps_recorded, run.metrics.steps);  // prefill is not
}
INSTANTIATE_TEST_SUITE_P(Ways, Recorded, ::testing::Values("Batched", "DraftsPreemptedWithHits"));

TEST(RecordedSteps, AreAllRecordedBeforeTheFirstRequest) {
  const auto context = make_cpu_context(2);
  RecordingOps ops(*context);
  EngineOptions o;
  o.slots = 4;
  o.max_length = testing::kMixedLength;
  o.draft_always = true;
  Engine engine(*context, tiny_model(), nullptr, o);
  const int64_t records = ops.records, allocations = ops.allocations;
  EXPECT_EQ(records, 2 * static_cast<int64_t>(
                             recorded_shapes(4, 1 + tiny_model().config().dspark_block_size, o.max_rows, 4).size()));
  for (int i = 0; i < 6; ++i) {
    Request r;
    r.prompt = testing::mixed_prompt(i);
    r.max_tokens = 8;
    engine.submit(std::move(r));
  }
  engine.run();
  EXPECT_EQ(engine.metrics().ended_length, 6);
  EXPECT_GT(engine.metrics().steps_recorded, 0);
  EXPECT_EQ(ops.records, records);
  EXPECT_EQ(ops.allocations, allocations);
}

TEST(RecordedSteps, AreNotThereWhereTheyAreNotWanted) {
  const auto context = make_cpu_context(2);
  const RecordingOps ops(*context);
  EngineOptions o;
  o.slots = 2;
  o.max_length = testing::kMixedLength;
  o.record_steps = false;
  Engine engine(*context, tiny_model(), nullptr, o);
  EXPECT_EQ(ops.records, 0);
  Request r;
  r.prompt = testing::mixed_prompt(3);
  r.max_tokens = 4;
  engine.submit(std::move(r));
  engine.run();
  EXPECT_EQ(engine.metrics().ended_length, 1);
  EXPECT_EQ(engine.metrics().steps_recorded, 0);
}

}  // namespace
}  // namespace mdi
