#include "engine/penalties.h"

#include <limits>

namespace mdi {

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  for (int32_t token : tokens) entries_[token].prompt = true;
}

namespace {
bool penalises(const SamplingParams& p) {
  return p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f || p.repetition_penalty != 1.0f;
}
}  // namespace

bool has_penalties(const SamplingParams& p) { return penalises(p) || !p.logit_bias.empty(); }

void apply_penalties(std::span<float> logits, const SamplingParams& p, const TokenHistory& history) {
  const auto inside = [&logits](int32_t token) { return token >= 0 && static_cast<size_t>(token) < logits.size(); };
  if (penalises(p)) {
    for (const auto& [token, entry] : history.entries()) {
      if (!inside(token)) continue;
      float& l = logits[static_cast<size_t>(token)];
      if (entry.prompt || entry.generated > 0) {
        l = l > 0.0f ? l / p.repetition_penalty : l * p.repetition_penalty;
      }
      if (entry.generated > 0) {
        l = l - p.frequency_penalty * static_cast<float>(entry.generated) - p.presence_penalty;
      }
    }
  }
  for (const LogitBias& b : p.logit_bias) {
    if (inside(b.token)) logits[static_cast<size_t>(b.token)] += b.bias;
  }
}

bool apply_allowed(std::span<float> logits, std::span<const uint32_t> bits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = i / 32 < bits.size() && (bits[i / 32] >> (i % 32) & 1u) != 0;
    if (!allowed) logits[i] = kNever;
    any = any || (allowed && logits[i] > kNever);
  }
  return any;
}

}  // namespace mdi
