#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/reference.h"
#include "kernels/cpu/simd.h"

namespace mdi::cpu {

namespace {

// An integer that orders bf16 values as numbers do: +0 and -0 are equal, NaN is the smallest of all.
uint32_t order_key(bf16 v) {
  const uint32_t magnitude = v.bits & 0x7FFFu;
  if (magnitude > 0x7F80u) return 0;
  if ((v.bits & 0x8000u) == 0) return 0x8000u + magnitude;
  return 0x8000u - magnitude;
}
constexpr uint32_t kMinusInfinity = 0x8000u - 0x7F80u;

struct Scored {
  uint32_t key;
  int32_t at;
};
bool better(const Scored& a, const Scored& b) { return a.key != b.key ? a.key > b.key : a.at < b.at; }

// The k best, ascending by `at`, then -1.
void take_best(std::vector<Scored>& entries, int32_t k, int32_t* out) {
  if (static_cast<int64_t>(entries.size()) > k) {
    std::nth_element(entries.begin(), entries.begin() + k, entries.end(), better);
    entries.resize(static_cast<size_t>(k));
  }
  std::sort(entries.begin(), entries.end(), [](const Scored& a, const Scored& b) { return a.at < b.at; });
  int32_t* end = std::transform(entries.begin(), entries.end(), out, [](const Scored& s) { return s.at; });
  std::fill(end, out + k, -1);
}

}  // namespace

void index_scores(const float* iq, const float* w, const float* keys, int64_t n, int32_t heads, int32_t key_dim,
                  bf16* out) {
  // Heads lie in lanes, so that a dot product is one chain over key_dim and needs no sum across lanes.
  const int groups = (heads + kLanes - 1) / kLanes;
  thread_local std::vector<float> transposed, weights;
  transposed.assign(static_cast<size_t>(groups) * kLanes * static_cast<size_t>(key_dim), 0.0f);
  weights.assign(static_cast<size_t>(groups) * kLanes, 0.0f);
  for (int h = 0; h < heads; ++h) {
    float* group = transposed.data() + int64_t{h / kLanes} * kLanes * key_dim;
    for (int d = 0; d < key_dim; ++d) group[int64_t{d} * kLanes + h % kLanes] = iq[int64_t{h} * key_dim + d];
    weights[static_cast<size_t>(h)] = w[h];
  }
  for (int64_t t = 0; t < n; ++t) {
    const float* key = keys + t * key_dim;
    float total[kLanes] = {};
    for (int g = 0; g < groups; ++g) {
      const float* q = transposed.data() + int64_t{g} * kLanes * key_dim;
      Lanes dot{};
      for (int d = 0; d < key_dim; ++d) dot = fma(load(q + int64_t{d} * kLanes), splat(key[d]), dot);
      float lanes[kLanes];
      store(lanes, dot);
      for (int l = 0; l < kLanes; ++l) {
        const float rectified = std::max(round_bf16(lanes[l]), 0.0f);
        total[l] += round_bf16(rectified * weights[static_cast<size_t>(g * kLanes + l)]);
      }
    }
    out[t] = to_bf16(horizontal_sum(load(total)));
  }
}

void select_topk(const bf16* scores, const int32_t* positions, int64_t n, int32_t k, int32_t* out) {
  thread_local std::vector<Scored> entries;
  entries.clear();
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = order_key(scores[i]);
    if (key == kMinusInfinity) continue;
    entries.push_back({key, positions != nullptr ? positions[i] : static_cast<int32_t>(i)});
  }
  take_best(entries, k, out);
}

void select_candidates(const bf16* scores, int64_t visible, int32_t block_size, int32_t keep, int32_t* out) {
  thread_local std::vector<Scored> entries;
  entries.clear();
  for (int64_t begin = 0; begin < visible; begin += block_size) {
    const int64_t end = std::min(begin + block_size, visible);
    uint32_t best = 0;
    for (int64_t i = begin; i < end; ++i) best = std::max(best, order_key(scores[i]));
    if (end == visible) best = std::numeric_limits<uint32_t>::max();  // the newest block is always kept
    if (best == kMinusInfinity) continue;
    entries.push_back({best, static_cast<int32_t>(begin / block_size)});
  }
  take_best(entries, keep, out);
}

}  // namespace mdi::cpu
