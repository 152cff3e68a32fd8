// Log-probabilities that go with a token: of the model's own distribution, before penalties, masks and temperature.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mdi {

inline constexpr int32_t kMaxTopLogprobs = 20;

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct Logprobs {
  float logprob = 0;              // of the chosen token
  std::vector<TokenLogprob> top;  // the most likely ones, falling; the lower id first among equals
};

// logits [vocab]: log_softmax summed in double in ascending id, so that equal rows give equal bits. top: 0..vocab.
Logprobs logprobs_of(std::span<const float> logits, int32_t chosen, int32_t top);

}  // namespace mdi
