#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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
  if (!(std::abs(p.presence_penalty) <= 2.0f)) refuse("presence_penalty", "-2 to 2", p.presence_penalty);
  if (!(std::abs(p.frequency_penalty) <= 2.0f)) refuse("frequency_penalty", "-2 to 2", p.frequency_penalty);
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 10.0f)) {
    refuse("repetition_penalty", "more than 0, at most 10", p.repetition_penalty);
  }
  for (const LogitBias& b : p.logit_bias) {
    if (!(std::abs(b.bias) <= 100.0f)) refuse("logit_bias", "-100 to 100", b.bias);
  }
}

int32_t argmax(std::span<const float> logits) {
  // The largest value first, in lanes that a compiler turns into vectors, then where it stands first: a vocabulary of
  // 129,280 takes some 40 microseconds, and every greedy token takes it. A comparison with NaN is false.
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
  }
  for (size_t j = 0; i < logits.size(); ++i, ++j) lanes[j] = logits[i] > lanes[j] ? logits[i] : lanes[j];
  const float largest = *std::max_element(lanes.begin(), lanes.end());
  const auto first = std::find(logits.begin(), logits.end(), largest);
  return first == logits.end() ? 0 : static_cast<int32_t>(first - logits.begin());
}

namespace {

bool more_likely(const TokenProbability& a, const TokenProbability& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

// Puts the first `count` of all tokens in order; those behind them are the less likely ones. A vocabulary is large and
// what is kept of it usually small, so the rest is not sorted.
void sort_first(std::vector<TokenProbability>& tokens, size_t sorted, size_t count) {
  const auto from = tokens.begin() + static_cast<ptrdiff_t>(sorted);
  if (count < tokens.size()) {
    std::nth_element(from, tokens.begin() + static_cast<ptrdiff_t>(count), tokens.end(), more_likely);
  }
  std::sort(from, tokens.begin() + static_cast<ptrdiff_t>(std::min(count, tokens.size())), more_likely);
}

void normalise(std::vector<TokenProbability>& tokens) {
  double sum = 0;
  for (const TokenProbability& t : tokens) sum += t.probability;
  for (TokenProbability& t : tokens) t.probability /= sum;
}

// Sorts as far as the smallest set that reaches `share` of all, and cuts there.
void keep_top_p(std::vector<TokenProbability>& tokens, size_t sorted, double share) {
  double sum = 0;
  size_t keep = 0;
  while (keep < tokens.size() && sum < share) {
    if (keep == sorted) {
      const size_t next = std::min(tokens.size(), std::max<size_t>(64, 4 * sorted));
      sort_first(tokens, sorted, next);
      sorted = next;
    }
    sum += tokens[keep++].probability;
  }
  tokens.resize(keep);
}

// softmax(logits / temperature) of all tokens that have a probability, in ascending id; `largest` is the largest logit.
std::vector<TokenProbability> softmax(std::span<const float> logits, float largest, float temperature) {
  const double divisor = std::max(static_cast<double>(temperature), 1e-5);
  std::vector<TokenProbability> tokens;
  tokens.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / divisor);
    if (p > 0) tokens.push_back({static_cast<int32_t>(i), p});
  }
  return tokens;
}

}  // namespace

std::vector<TokenProbability> distribution(std::span<const float> logits, const SamplingParams& params) {
  const int32_t best = argmax(logits);
  const float largest = logits[static_cast<size_t>(best)];
  if (params.temperature == 0.0f || !std::isfinite(largest)) return {{best, 1.0}};

  std::vector<TokenProbability> tokens = softmax(logits, largest, params.temperature);
  size_t sorted = 0;
  if (params.top_k > 0) {
    sorted = std::min(static_cast<size_t>(params.top_k), tokens.size());
    sort_first(tokens, 0, sorted);
    tokens.resize(sorted);
  }
  normalise(tokens);
  const size_t all = tokens.size();
  if (params.top_p < 1.0f) {
    keep_top_p(tokens, sorted, static_cast<double>(params.top_p));
    sorted = tokens.size();
  }
  if (params.min_p > 0.0f) {
    double most = 0;
    for (const TokenProbability& t : tokens) most = std::max(most, t.probability);
    const double least = static_cast<double>(params.min_p) * most;
    std::erase_if(tokens, [least](const TokenProbability& t) { return t.probability < least; });
    sorted = std::min(sorted, tokens.size());
  }
  if (sorted < tokens.size()) sort_first(tokens, sorted, tokens.size());
  if (tokens.size() < all) normalise(tokens);
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
  const double uniform = random_uniform({.seed = params.seed, .sequence = sequence, .position = position}, 0);
  const float largest = logits[static_cast<size_t>(argmax(logits))];
  const bool filtered = params.top_k > 0 || params.top_p < 1.0f || params.min_p > 0.0f;
  if (filtered || !std::isfinite(largest)) return draw(distribution(logits, params), uniform);
  // The same draw without sorting the whole vocabulary: the sum reaches most numbers within the first few tokens.
  std::vector<TokenProbability> tokens = softmax(logits, largest, params.temperature);
  normalise(tokens);
  double sum = 0;
  for (size_t i = 0, sorted = 0; i < tokens.size(); ++i) {
    if (i == sorted) {
      const size_t next = std::min(tokens.size(), std::max<size_t>(256, 8 * sorted));
      sort_first(tokens, sorted, next);
      sorted = next;
    }
    sum += tokens[i].probability;
    if (uniform < sum) return tokens[i].token;
  }
  return tokens.back().token;
}

}  // namespace mdi
