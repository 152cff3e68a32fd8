// Where two backends part: stage by stage, and layer by layer when each is fed with the oracle's stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/golden/prompt.h"

namespace mdi::golden {

// One stage's values in two runs of the same tokens.
struct StageDifference {
  std::string name;  // "layers.3.attn_out"
  int64_t values = 0, differ = 0;
  int64_t row = 0;  // of the largest difference
  // The largest difference in bf16 roundings of the value, or of its row's root mean square where that is larger.
  // Of integers: 0.
  double roundings = 0;
};

// Every stage that both runs showed, in the order in which a step computes them.
std::vector<StageDifference> stage_differences(const ModelConfig& config, const Recording& found,
                                               const Recording& expected);

// Steps of the bf16 grid from one score to the other.
int64_t bf16_steps(bf16 a, bf16 b);

// As information: the first stage in which the device's run differs from the oracle's.
void report_first_difference(const Prompt& prompt, const Recording& run, const Recording& oracle);

// Runs the prompt on the device, each layer from the oracle's stream and lists. Reports, as information, the stages
// that differ (each of them where the report was asked for some names only), and judges what one side alone selects: an
// index or a candidate block whose oracle score is more than one bf16 rounding from the threshold is a FAIL.
void compare_fed_layers(const Prompt& prompt, const PromptPart& tokens, const Recording& oracle);

}  // namespace mdi::golden
