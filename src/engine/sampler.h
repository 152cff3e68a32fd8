// From a row of logits to a token: temperature, top-k, top-p, min-p, and a draw from a counter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/random.h"
#include "kernels/sample.h"

namespace mdi {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;  // added to the logit
};

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, the lower id among equals
  int32_t top_k = 0;         // 0: no limit
  float top_p = 1.0f;        // the smallest set of most likely tokens whose probability reaches it
  float min_p = 0.0f;        // drop tokens less likely than min_p times the most likely one
  uint64_t seed = 0;
  // What penalties.h applies to the logits first; the defaults change nothing.
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<LogitBias> logit_bias = {};
};

// Throws mdi::Error(where, ...) naming the parameter. Tokens of logit_bias are compared with the vocabulary where that
// is known (penalties.h).
void check_sampling(const SamplingParams& params, const char* where);

// The largest logit; the lower id among equals. NaN is never larger.
int32_t argmax(std::span<const float> logits);

struct TokenProbability {
  int32_t token;
  double probability;
};
// The distribution that a token is drawn from, in ascending id, summing to 1; tokens that cannot be drawn are left out.
// The filters apply in the order top-k, top-p, min-p, to softmax(logits / temperature), with the lower id first among
// equals (kernels/sample_math.h). Greedy: one token. A logit of -inf is never drawn; NaN neither.
std::vector<TokenProbability> distribution(std::span<const float> logits, const SamplingParams& params);

// The first token, in ascending id, at which the sum of the probabilities exceeds `uniform`.
int32_t draw(std::span<const TokenProbability> distribution, double uniform);

// What a device needs to choose the same token as sample().
SampleRow sample_row(const SamplingParams& params, uint64_t sequence, uint64_t position);

int32_t sample(std::span<const float> logits, const SamplingParams& params, uint64_t sequence, uint64_t position);

}  // namespace mdi
