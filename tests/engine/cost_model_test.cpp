// The cost model finds what steps cost, and the draft policy decides by it.
#include "engine/cost_model.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/draft_policy.h"
#include "engine/watchdog.h"

namespace mdi {
namespace {

double truth(const StepLoad& load) { return 4e-3 + 2.5e-5 * load.rows + 3e-10 * load.context + 8e-6 * load.samples; }

CostModel fitted(double noise, int steps = 400) {
  CostModel model;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < steps; ++i) {
    StepLoad load =
        load_of(static_cast<int64_t>(uniform(random) * 1e5), 1 + static_cast<int64_t>(uniform(random) * 2000), 1);
    for (int s = 0; s < 40; ++s) load += load_of(static_cast<int64_t>(uniform(random) * 1e5), 1, 1);
    observe(model, load, truth(load) * (1 + noise * (uniform(random) - 0.5)));
  }
  return model;
}

TEST(CostModel, FindsTheCostsOfMeasuredSteps) {
  for (double noise : {0.0, 0.2}) {
    const CostModel model = fitted(noise);
    for (const StepLoad& load : {load_of(50000, 1500, 1), load_of(1000, 64, 40), load_of(90000, 300, 20)}) {
      EXPECT_NEAR(predict(model, load) / truth(load), 1, noise == 0.0 ? 0.02 : 0.15);
    }
  }
}

TEST(CostModel, FollowsAMachineThatBecomesSlower) {
  CostModel model = fitted(0.05);
  for (int i = 0; i < 300; ++i) {
    const StepLoad load = load_of(1000 * (i % 50), 10 + 37 * (i % 40), 1 + i % 7);
    observe(model, load, 2 * truth(load));
  }
  EXPECT_NEAR(predict(model, load_of(20000, 600, 4)) / truth(load_of(20000, 600, 4)), 2, 0.3);
}

TEST(CostModel, NoCostIsNegativeAndNonsenseIsLeftOut) {
  CostModel model;
  observe(model, load_of(0, 10, 1), 0);
  observe(model, load_of(0, 10, 1), -1);
  observe(model, {}, 1);
  EXPECT_EQ(model.observed, 0);
  // The more rows the faster: noise that a plain fit would believe.
  for (int i = 0; i < 50; ++i) observe(model, load_of(0, 10 + 10 * (i % 5), 1), 0.01 - 0.001 * (i % 5));
  for (double c : model.c) EXPECT_GE(c, 0);
  EXPECT_NEAR(predict(model, load_of(0, 30, 1)), 0.008, 0.002);
}

TEST(CostModel, RowsWithinIsTheLargestThatFits) {
  const CostModel model = fitted(0);
  const StepLoad base = load_of(70000, 1, 1);
  const int32_t rows = rows_within(model, base, 5000, 4096, 0.030);
  ASSERT_GT(rows, 0);
  ASSERT_LT(rows, 4096);
  StepLoad at = base;
  at += load_of(5000, rows, 1);
  StepLoad above = base;
  above += load_of(5000, rows + 1, 1);
  EXPECT_LE(predict(model, at), 0.030);
  EXPECT_GT(predict(model, above), 0.030);
  EXPECT_EQ(rows_within(model, base, 5000, 4096, 1e-6), 0);
  EXPECT_EQ(rows_within(model, base, 5000, 100, 1e6), 100);
}

// Drafting: a step of one sequence costs nearly the same with six rows as with one; a full batch pays for every row.
struct Machine {
  CostModel step, draft;
  Machine() {
    step.c = {10e-3, 0.1e-3, 0, 0};
    draft.c = {1e-3, 0.005e-3, 0, 0};
  }
  DraftCosts costs() const { return {.step = step, .draft = draft}; }
};

TEST(DraftPolicy, DraftsPayInSmallBatchesAndNotInFullOnes) {
  const Machine m;
  const DraftHistory history;
  EXPECT_TRUE(drafting_pays(history, m.costs(), {.rows = 1, .context = 100, .samples = 1}, 1, 5));
  EXPECT_FALSE(drafting_pays(history, m.costs(), {.rows = 512, .context = 100, .samples = 512}, 512, 5));
}

TEST(DraftPolicy, DraftsThatAreNeverAcceptedAreTurnedOffAndTriedAgainLater) {
  const Machine m;
  DraftHistory history;
  for (int i = 0; i < 3000; ++i) note_block(history, 5, 0);
  const StepLoad one{.rows = 1, .context = 100, .samples = 1};
  for (int64_t i = 0; i < kProbeEvery; ++i) {
    EXPECT_FALSE(drafting_pays(history, m.costs(), one, 1, 5));
    note_step(history, false);
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(drafting_pays(history, m.costs(), one, 1, 5)) << "until it was tried";
  note_step(history, true);
  EXPECT_FALSE(drafting_pays(history, m.costs(), one, 1, 5));
}

TEST(DraftPolicy, TheThresholdRisesWithTheLoad) {
  const Machine m;
  const DraftHistory history;
  const double alone = survival_threshold(history, m.costs(), {.rows = 1, .context = 0, .samples = 1}, 1, 5);
  const double full = survival_threshold(history, m.costs(), {.rows = 256, .context = 0, .samples = 256}, 256, 5);
  EXPECT_LT(alone, 0.1);
  EXPECT_GT(full, 0.3);
}

TEST(DraftPolicy, VerifiesUpToTheFirstUnlikelyProposal) {
  const std::vector<float> confidence = {4, 4, -3, 9, 9};
  EXPECT_EQ(verify_length(confidence, 5, 0.5), 2);
  EXPECT_EQ(verify_length(confidence, 1, 0.5), 1);
  EXPECT_EQ(verify_length(confidence, 5, 0.0), 5);
  EXPECT_EQ(verify_length(confidence, 5, 1.0), 0);
  EXPECT_EQ(verify_length({}, 5, 0.5), 0);
}

TEST(Watchdog, BarksWhenNothingGetsFurther) {
  Progress progress;
  EXPECT_FALSE(stands_still(progress, 0, 100, 10));
  EXPECT_FALSE(stands_still(progress, 0, 109, 10));
  EXPECT_TRUE(stands_still(progress, 0, 111, 10));
  EXPECT_FALSE(stands_still(progress, 1, 111, 10));
  // Preempted and recomputed: the same tokens again are no progress.
  EXPECT_FALSE(stands_still(progress, 0, 115, 10));
  EXPECT_TRUE(stands_still(progress, 1, 122, 10));
  EXPECT_FALSE(stands_still(progress, 1, 1e9, 0)) << "0: no limit";
}

}  // namespace
}  // namespace mdi
