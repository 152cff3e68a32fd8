// When drafting pays, and how many proposals of a block are worth verifying (spec dspark.md 5). Pure functions of what
// was measured; the tokens that come out do not depend on them.
#pragma once

#include <cstdint>
#include <span>

#include "engine/cost_model.h"

namespace mdi {

// Decayed sums over the blocks that were verified; half their weight is gone after about 350 blocks.
struct DraftHistory {
  double blocks = 8, verified = 32, accepted = 16;  // a guess with the weight of 8 blocks: four verified, two accepted
  int64_t steps_off = 0;                            // steps in a row in which drafting was held to be a loss
};

void note_block(DraftHistory& history, int32_t verified, int32_t accepted);
// Of a step that could have drafted: whether it did.
void note_step(DraftHistory& history, bool drafted);

// Every so many steps without drafting it is tried again: what is accepted changes with the text.
inline constexpr int64_t kProbeEvery = 256;

struct DraftCosts {
  const CostModel& step;   // of steps
  const CostModel& draft;  // of draft calls: rows are sequences * block
};

// Whether a step that decodes `sequences` sequences makes tokens faster with a draft call and verification than
// without, or is to be tried again. `rest` is the step's load without proposals. The answer stays the same until a
// step is noted: a step may be planned more than once before it runs.
bool drafting_pays(const DraftHistory& history, const DraftCosts& costs, const StepLoad& rest, int32_t sequences,
                   int32_t block);

// The least probability of survival with which verifying a row more gains time: the row's cost over what a token costs
// now. From costs and history alone, not from the block at hand, so that stopping by it keeps sampling lossless.
double survival_threshold(const DraftHistory& history, const DraftCosts& costs, const StepLoad& rest, int32_t sequences,
                          int32_t block);

// How many of the first `most` proposals to verify: up to the first whose survival (the product of the sigmoids of
// confidence[0..i]) is below the threshold. confidence[i] does not depend on proposal i, so the rule does not look at
// what it judges.
int32_t verify_length(std::span<const float> confidence, int32_t most, double threshold);

}  // namespace mdi
