#include "engine/draft_policy.h"

#include <algorithm>
#include <cmath>

namespace mdi {

namespace {

constexpr double kDecay = 0.998;

double draft_seconds(const DraftCosts& costs, int32_t sequences, int32_t block) {
  return predict(costs.draft, {.rows = static_cast<double>(sequences) * block, .context = 0, .samples = 0});
}

// The step with `rows` proposals more, spread evenly over its sequences.
StepLoad with_proposals(const StepLoad& rest, double rows) {
  StepLoad load = rest;
  const double context = rest.rows > 0 ? rest.context / rest.rows : 0;
  load += {.rows = rows, .context = rows * context, .samples = rows};
  return load;
}

}  // namespace

void note_block(DraftHistory& history, int32_t verified, int32_t accepted) {
  history.blocks = kDecay * history.blocks + 1;
  history.verified = kDecay * history.verified + verified;
  history.accepted = kDecay * history.accepted + accepted;
}

void note_step(DraftHistory& history, bool drafted) { history.steps_off = drafted ? 0 : history.steps_off + 1; }

bool drafting_pays(const DraftHistory& history, const DraftCosts& costs, const StepLoad& rest, int32_t sequences,
                   int32_t block) {
  const double s = sequences;
  const double verified = std::min(history.verified / history.blocks, static_cast<double>(block));
  const double accepted = history.accepted / history.blocks;
  const double with = predict(costs.step, with_proposals(rest, s * verified)) + draft_seconds(costs, sequences, block);
  const double without = predict(costs.step, rest);
  return history.steps_off >= kProbeEvery || s * (1 + accepted) * without > s * with;
}

double survival_threshold(const DraftHistory& history, const DraftCosts& costs, const StepLoad& rest, int32_t sequences,
                          int32_t block) {
  const double s = std::max(sequences, 1);
  const double verified = history.verified / history.blocks;
  const StepLoad load = with_proposals(rest, s * verified);
  const double seconds = predict(costs.step, load) + draft_seconds(costs, sequences, block);
  const double row = predict(costs.step, with_proposals(load, 1)) - predict(costs.step, load);
  const double per_token = seconds / (s * (1 + history.accepted / history.blocks));
  return per_token > 0 ? std::clamp(row / per_token, 0.0, 1.0) : 0.0;
}

int32_t verify_length(std::span<const float> confidence, int32_t most, double threshold) {
  double survival = 1;
  const auto count = std::min(static_cast<int32_t>(confidence.size()), most);
  for (int32_t i = 0; i < count; ++i) {
    survival /= 1 + std::exp(-static_cast<double>(confidence[static_cast<size_t>(i)]));
    if (!(survival >= threshold)) return i;
  }
  return std::max(count, 0);
}

}  // namespace mdi
