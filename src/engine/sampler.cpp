#include "engine/sampler.h"

#include <cmath>
#include <string>

#include "core/error.h"
#include "kernels/cpu/sample.h"
#include "kernels/sample_math.h"

namespace mdi {

void check_sampling(const SamplingParams& p, const char* where) {
  const auto refuse = [where](const char* name, const char* expected, auto found) {
    throw Error(where, std::string(name) + ": expected " + expected + ", found " + std::to_string(found));
  };
  if (!(p.temperature >= 0.0f && p.temperature <= 100.0f)) refuse("temperature", "0 to 100", p.temperature);
  if (p.top_k < 0) refuse("top_k", "0 (no limit) or more", p.top_k);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) refuse("top_p", "more than 0, at most 1", p.top_p);
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) refuse("min_p", "0 to 1", p.min_p);
  if (!(std::abs(p.presence_penalty) <= 2.0f)) refuse("presence_penalty", "-2 to 2", p.presence_penalty);
  if (!(std::abs(p.frequency_penalty) <= 2.0f)) refuse("frequency_penalty", "-2 to 2", p.frequency_penalty);
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 10.0f)) {
    refuse("repetition_penalty", "more than 0, at most 10", p.repetition_penalty);
  }
  for (const LogitBias& b : p.logit_bias) {
    if (!(std::abs(b.bias) <= 100.0f)) refuse("logit_bias", "-100 to 100", b.bias);
  }
}

int32_t argmax(std::span<const float> logits) { return cpu::argmax(logits); }

SampleRow sample_row(const SamplingParams& params, uint64_t sequence, uint64_t position) {
  return {.seed = params.seed,
          .sequence = sequence,
          .position = position,
          .exponent = sampling::exponent_of(params.temperature),
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k};
}

std::vector<TokenProbability> distribution(std::span<const float> logits, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  const float largest = logits[static_cast<size_t>(best)];
  if (params.temperature == 0.0f || !std::isfinite(largest)) return {{best, 1.0}};
  std::vector<uint64_t> weights;
  const auto total = static_cast<double>(cpu::kept_weights(logits, sample_row(params, 0, 0), largest, weights));
  std::vector<TokenProbability> tokens;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) tokens.push_back({static_cast<int32_t>(i), static_cast<double>(weights[i]) / total});
  }
  return tokens;
}

int32_t draw(std::span<const TokenProbability> tokens, double uniform) {
  double sum = 0;
  for (const TokenProbability& t : tokens) {
    sum += t.probability;
    if (uniform < sum) return t.token;
  }
  return tokens.back().token;  // the sum fell short of 1 by rounding
}

int32_t sample(std::span<const float> logits, const SamplingParams& params, uint64_t sequence, uint64_t position) {
  static thread_local std::vector<uint64_t> weights;
  const int32_t token = cpu::choose(logits, sample_row(params, sequence, position), weights);
  return token == kNotFinite ? argmax(logits) : token;
}

}  // namespace mdi
