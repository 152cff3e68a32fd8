// Padding to a fixed shape changes no bit of the real rows and of their state, whatever the padding holds.
#include "model/padding.h"

#include <gtest/gtest.h>

#include "padded_steps.h"
#include "recording_ops.h"

namespace mdi {
namespace {

using testing::compare_padded;
using testing::iota_blocks;
using testing::padded_shapes;
using testing::tiny_model;

std::shared_ptr<Context> cpu() { return make_cpu_context(2); }

StepSequence part(int32_t slot, int32_t start, const std::vector<int32_t>& tokens, const std::vector<int32_t>& blocks,
                  const std::vector<int32_t>& samples) {
  StepSequence s;
  s.slot = slot;
  s.start = start;
  s.tokens = tokens;
  s.blocks = blocks;
  s.sample_tokens = samples;
  return s;
}

class PaddedSteps : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PaddedSteps, GiveTheBitsOfTheStepAlone) {
  const auto run = compare_padded(tiny_model(), cpu(), 5, 300, 6, 24, false, GetParam());
  EXPECT_EQ(run.wrong, "");
  EXPECT_EQ(run.steps, 24);
  EXPECT_GT(run.padding, 100);
}
INSTANTIATE_TEST_SUITE_P(Seeds, PaddedSteps, ::testing::Values(1u, 2u, 3u));

TEST(RecordedSteps, GiveItFromARecordToo) {
  const auto context = cpu();
  const testing::RecordingOps ops(*context);
  const auto run = compare_padded(tiny_model(), context, 5, 300, 6, 24, true, 4);
  EXPECT_EQ(run.wrong, "");
  EXPECT_EQ(run.steps, 24);
  EXPECT_GT(run.shapes, 5);
}

TEST(Padding, StandsBehindTheStepAndNamesItsOwnSlotAndBlock) {
  const testing::Runner r(tiny_model(), 3, 300, 16);
  const std::vector<int32_t> tokens = {5, 6, 7}, one = {9}, all = {0, 1, 2}, first = {0};
  const std::vector<StepSequence> parts = {part(1, 130, tokens, r.blocks[1], all), part(0, 4, one, r.blocks[0], first)};
  const Step step = make_step(tiny_model(), r.state, parts);
  ASSERT_EQ(step.max_blocks, 2);
  Step out;
  pad_step(step, {.sequences = 4, .rows = 8, .max_blocks = 3}, 2, 8, out);
  EXPECT_EQ(out.token, (std::vector<int32_t>{5, 6, 7, 9, 0, 0, 0, 0}));
  EXPECT_EQ(out.position, (std::vector<int32_t>{130, 131, 132, 4, 0, 1, 2, 3}));
  EXPECT_EQ(out.seq_of_row, (std::vector<int32_t>{0, 0, 0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(out.sample_rows, (std::vector<int32_t>{0, 1, 2, 3, 7, 7, 7, 7}));
  EXPECT_EQ(out.seq_slot, (std::vector<int32_t>{1, 0, 2, 2, 2}));
  EXPECT_EQ(out.seq_start, (std::vector<int32_t>{130, 4, 0, 0, 0}));
  EXPECT_EQ(out.seq_row, (std::vector<int32_t>{0, 3, 4, 8, 8}));
  EXPECT_EQ(out.seq_count, (std::vector<int32_t>{3, 1, 4, 0, 0}));
  EXPECT_EQ(out.seq_kept, out.seq_count);
  EXPECT_EQ(out.block_table, (std::vector<int32_t>{3, 4, 8, 0, 1, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}));
}

TEST(Padding, TakesWhatIsNoLargerThanTheShape) {
  const testing::Runner r(tiny_model(), 3, 300, 300);
  const auto tokens = testing::some_tokens(140, 3);
  const std::vector<StepSequence> parts = {part(0, 0, tokens, r.blocks[0], {})};
  Step step = make_step(tiny_model(), r.state, parts);
  EXPECT_TRUE(fits(step, {.sequences = 1, .rows = 140, .max_blocks = 2}));
  EXPECT_FALSE(fits(step, {.sequences = 1, .rows = 139, .max_blocks = 2}));
  EXPECT_FALSE(fits(step, {.sequences = 1, .rows = 140, .max_blocks = 1}));
  EXPECT_FALSE(fits(step, {.sequences = 0, .rows = 140, .max_blocks = 2}));
  step.seq_kept[0] = 100;  // rows that the upper layers drop
  EXPECT_FALSE(fits(step, {.sequences = 1, .rows = 140, .max_blocks = 2}));
  step.seq_kept[0] = 140;
  step.image_row.assign(140, -1);
  EXPECT_FALSE(fits(step, {.sequences = 1, .rows = 140, .max_blocks = 2}));
}

}  // namespace
}  // namespace mdi
