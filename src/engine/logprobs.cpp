#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampler.h"

namespace mdi {

Logprobs logprobs_of(std::span<const float> logits, int32_t chosen, int32_t top) {
  const double largest = static_cast<double>(logits[static_cast<size_t>(argmax(logits))]);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l) - largest);
  const double log_sum = largest + std::log(sum);
  const auto of = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum);
  };

  Logprobs out{.logprob = of(chosen), .top = {}};
  if (top <= 0) return out;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min(static_cast<size_t>(top), ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)];
    const float lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  for (size_t i = 0; i < count; ++i) out.top.push_back({ids[i], of(ids[i])});
  return out;
}

}  // namespace mdi
