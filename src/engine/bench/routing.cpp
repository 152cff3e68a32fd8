#include "engine/bench/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "checkpoint/synth_values.h"
#include "core/error.h"

namespace mdi::bench {

namespace {

struct Draws {
  uint64_t key, at = 0;
  uint64_t next() { return random_at(key, at++); }
  int64_t below(int64_t n) { return static_cast<int64_t>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

std::vector<int32_t> shuffled(int64_t n, Draws& draws) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(draws.below(i + 1))]);
  return all;
}

// Consecutive places of one permutation differ, and each place comes equally often.
std::vector<int32_t> balanced(int64_t tokens, int32_t topk, int32_t experts, Draws& draws) {
  const std::vector<int32_t> expert = shuffled(experts, draws), token = shuffled(tokens, draws);
  std::vector<int32_t> index(static_cast<size_t>(tokens * topk));
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t c = 0; c < topk; ++c) {
      const auto at = static_cast<size_t>(int64_t{token[static_cast<size_t>(i)]} * topk + c);
      index[at] = expert[static_cast<size_t>((i * topk + c) % experts)];
    }
  }
  return index;
}

// Draws one expert at a time by `cumulative` popularity and again where the token has it already.
std::vector<int32_t> drawn(int64_t tokens, int32_t topk, const std::vector<double>& cumulative, Draws& draws) {
  std::vector<int32_t> index;
  index.reserve(static_cast<size_t>(tokens * topk));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<ptrdiff_t>(index.size());
    while (static_cast<int64_t>(index.size()) < (t + 1) * topk) {
      const double u = draws.unit() * cumulative.back();
      const auto at = std::upper_bound(cumulative.begin(), cumulative.end() - 1, u) - cumulative.begin();
      const auto chosen = static_cast<int32_t>(at);
      if (std::find(index.begin() + first, index.end(), chosen) == index.end()) index.push_back(chosen);
    }
  }
  return index;
}

}  // namespace

const char* routing_name(Routing routing) {
  switch (routing) {
    case Routing::kRandom:
      return "random";
    case Routing::kBalanced:
      return "balanced";
    case Routing::kSkewed:
      return "skewed";
  }
  return "?";
}

Routing routing_from_name(std::string_view name) {
  for (const Routing r : {Routing::kRandom, Routing::kBalanced, Routing::kSkewed}) {
    if (name == routing_name(r)) return r;
  }
  throw Error("--routing", "expected random, balanced or skewed, found '" + std::string(name) + "'");
}

std::vector<int32_t> make_routing(Routing routing, int64_t tokens, int32_t topk, int32_t experts, uint64_t seed) {
  if (topk < 1 || topk > experts) {
    throw Error("routing", "cannot choose " + std::to_string(topk) + " of " + std::to_string(experts) + " experts");
  }
  Draws draws{.key = random_at(seed, static_cast<uint64_t>(routing))};
  if (routing == Routing::kBalanced) return balanced(tokens, topk, experts, draws);
  std::vector<double> popularity(static_cast<size_t>(experts), 1.0);
  if (routing == Routing::kSkewed) {
    const std::vector<int32_t> order = shuffled(experts, draws);
    for (size_t i = 0; i < order.size(); ++i) {
      popularity[static_cast<size_t>(order[i])] = 1 / std::sqrt(static_cast<double>(i + 1));
    }
  }
  std::partial_sum(popularity.begin(), popularity.end(), popularity.begin());
  return drawn(tokens, topk, popularity, draws);
}

ExpertLoad expert_load(const std::vector<int32_t>& index, int32_t first, int32_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (const int32_t e : index) {
    if (e >= first && e < first + count) ++rows[static_cast<size_t>(e - first)];
  }
  ExpertLoad load;
  for (const int64_t n : rows) {
    load.rows += n;
    load.active += n > 0 ? 1 : 0;
    load.most = std::max(load.most, n);
  }
  return load;
}

}  // namespace mdi::bench
