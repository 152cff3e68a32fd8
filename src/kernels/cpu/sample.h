// How the host chooses a token from a row of logits (kernels/sample_math.h): the CPU's operation, and what the engine's
// sampler is made of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/sample.h"

namespace mdi::cpu {

// The largest logit; the lower id among equals. NaN is never larger.
int32_t argmax(std::span<const float> logits);

// weights [vocab]: what each token weighs after the filters, 0 for those that they drop. Returns the sum. `largest` is
// the row's largest logit, finite; the row is not greedy.
uint64_t kept_weights(std::span<const float> logits, const SampleRow& row, float largest,
                      std::vector<uint64_t>& weights);

// The token of a row, or kNotFinite. `weights` is memory to use again.
int32_t choose(std::span<const float> logits, const SampleRow& row, std::vector<uint64_t>& weights);

void sample(Context&, const SampleArgs&);
void place_tokens(Context&, const PlaceTokensArgs&);

}  // namespace mdi::cpu
