#include "kernels/cpu/sample.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "kernels/cpu/stages.h"
#include "kernels/sample_math.h"

namespace mdi::cpu {

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

// Puts the first `count` ranks in falling order, of which `sorted` are already; those behind them are lower. A
// vocabulary is large and what is kept of it usually small, so the rest is not sorted.
void sort_first(std::vector<uint64_t>& ranks, size_t sorted, size_t count) {
  const auto from = ranks.begin() + static_cast<ptrdiff_t>(sorted);
  const auto to = ranks.begin() + static_cast<ptrdiff_t>(std::min(count, ranks.size()));
  if (count < ranks.size()) std::nth_element(from, to, ranks.end(), std::greater<>());
  std::sort(from, to, std::greater<>());
}

// The rank from which on top-k and top-p keep tokens.
uint64_t cut_of(std::span<const float> logits, const SampleRow& row, std::span<const uint64_t> weights) {
  std::vector<uint64_t> ranks;
  ranks.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights[i] > 0) ranks.push_back(sampling::rank_of(logits[i], static_cast<int64_t>(i)));
  }
  size_t sorted = 0;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ranks.size()) {
    sorted = static_cast<size_t>(row.top_k);
    sort_first(ranks, 0, sorted);
    ranks.resize(sorted);
  }
  if (row.top_p >= 1.0f) return *std::min_element(ranks.begin(), ranks.end());
  const auto weight = [&](uint64_t rank) { return weights[static_cast<size_t>(sampling::id_of(rank))]; };
  uint64_t total = 0;
  for (const uint64_t rank : ranks) total += weight(rank);
  const uint64_t share = sampling::share_of(total, row.top_p);
  uint64_t sum = 0;
  for (size_t i = 0;; ++i) {
    if (i == sorted) {
      const size_t next = std::min(ranks.size(), std::max<size_t>(64, 4 * sorted));
      sort_first(ranks, sorted, next);
      sorted = next;
    }
    sum += weight(ranks[i]);
    if (sum >= share) return ranks[i];
  }
}

}  // namespace

uint64_t kept_weights(std::span<const float> logits, const SampleRow& row, float largest,
                      std::vector<uint64_t>& weights) {
  const int shift = sampling::shift_of(static_cast<int64_t>(logits.size()));
  weights.resize(logits.size());
  uint64_t total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = sampling::weight_of(logits[i], largest, row.exponent, shift);
    total += weights[i];
  }
  const bool ranked = row.top_k > 0 || row.top_p < 1.0f;
  if (!ranked && row.min_p <= 0.0f) return total;
  const uint64_t cut = ranked ? cut_of(logits, row, weights) : 0;
  const uint64_t least = sampling::least_weight(row.min_p, shift);
  total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool keep = weights[i] >= least && sampling::rank_of(logits[i], static_cast<int64_t>(i)) >= cut;
    weights[i] = keep ? weights[i] : 0;
    total += weights[i];
  }
  return total;
}

int32_t choose(std::span<const float> logits, const SampleRow& row, std::vector<uint64_t>& weights) {
  const int32_t best = argmax(logits);
  const float largest = logits[static_cast<size_t>(best)];
  if (!sampling::is_finite(largest)) return kNotFinite;
  if (row.exponent == 0) return best;
  const uint64_t total = kept_weights(logits, row, largest, weights);
  const uint64_t target = sampling::scaled(sampling::random_bits(row.seed, row.sequence, row.position, 0), total);
  // Below the total, so the loop ends.
  uint64_t sum = 0;
  size_t i = 0;
  while ((sum += weights[i]) <= target) ++i;
  return static_cast<int32_t>(i);
}

void sample(Context& context, const SampleArgs& a) {
  cpu(context).pool.for_each(a.rows, [&](int64_t i) {
    static thread_local std::vector<uint64_t> weights;
    const std::span logits(a.logits + i * a.vocab, static_cast<size_t>(a.vocab));
    a.chosen[i] = a.row[i].wanted == 0 ? kNotWanted : choose(logits, a.row[i], weights);
  });
}

void place_tokens(Context&, const PlaceTokensArgs& a) {
  for (int32_t i = 0; i < a.count; ++i) a.token[a.place[i]] = std::max(a.chosen[a.source[i]], 0);
}

}  // namespace mdi::cpu
