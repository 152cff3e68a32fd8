#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace mdi {

void check_sampling(const SamplingParams& p, const char* where) {
  const auto refuse = [where](const char* name, const char* expected, auto found) {
    throw Error(where, std::string(name) + ": expected " + expected + ", found " + std::to_string(found));
  };
  if (!(p.temperature >= 0.0f && p.temperature <= 100.0f)) refuse("temperature", "0 to 100", p.temperature);
  if (p.top_k < 0) refuse("top_k", "0 (no limit) or more", p.top_k);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) refuse("top_p", "more than 0, at most 1", p.top_p);
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) refuse("min_p", "0 to 1", p.min_p);
}

int32_t argmax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best] || std::isnan(logits[best])) best = i;
  }
  return static_cast<int32_t>(best);
}

namespace {

// `keep` tokens of the largest logits, in order. Partial selection: a vocabulary is large and keep is usually small.
void keep_most_likely(std::vector<TokenProbability>& tokens, size_t keep) {
  const auto more_likely = [](const TokenProbability& a, const TokenProbability& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
  };
  keep = std::min(keep, tokens.size());
  if (keep < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(keep), tokens.end(), more_likely);
    tokens.resize(keep);
  }
  std::sort(tokens.begin(), tokens.end(), more_likely);
}

void normalise(std::vector<TokenProbability>& tokens) {
  double sum = 0;
  for (const TokenProbability& t : tokens) sum += t.probability;
  for (TokenProbability& t : tokens) t.probability /= sum;
}

}  // namespace

std::vector<TokenProbability> distribution(std::span<const float> logits, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  const float largest = logits[static_cast<size_t>(best)];
  if (params.temperature == 0.0f || !std::isfinite(largest)) return {{best, 1.0}};

  const double temperature = std::max(static_cast<double>(params.temperature), 1e-5);
  std::vector<TokenProbability> tokens;
  tokens.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / temperature);
    if (p > 0) tokens.push_back({static_cast<int32_t>(i), p});
  }
  keep_most_likely(tokens, params.top_k > 0 ? static_cast<size_t>(params.top_k) : tokens.size());
  normalise(tokens);
  if (params.top_p < 1.0f) {
    double sum = 0;
    size_t keep = 0;
    while (keep < tokens.size() && sum < static_cast<double>(params.top_p)) sum += tokens[keep++].probability;
    tokens.resize(keep);
  }
  if (params.min_p > 0.0f) {
    const double least = static_cast<double>(params.min_p) * tokens.front().probability;
    while (tokens.back().probability < least) tokens.pop_back();
  }
  normalise(tokens);
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
  if (params.temperature == 0.0f) return argmax(logits);
  return draw(distribution(logits, params),
              random_uniform({.seed = params.seed, .sequence = sequence, .position = position}, 0));
}

}  // namespace mdi
