#include "engine/speculation.h"

#include <algorithm>

namespace mdi {

namespace {

double probability_of(std::span<const TokenProbability> distribution, int32_t token) {
  const auto it = std::lower_bound(distribution.begin(), distribution.end(), token,
                                   [](const TokenProbability& a, int32_t wanted) { return a.token < wanted; });
  return it == distribution.end() || it->token != token ? 0.0 : it->probability;
}

// max(p - q, 0), normalised. Where rounding leaves nothing, p and q are equal and p itself is right.
std::vector<TokenProbability> residual(std::span<const TokenProbability> p, std::span<const TokenProbability> q) {
  std::vector<TokenProbability> rest;
  double sum = 0;
  auto at = q.begin();
  for (const TokenProbability& t : p) {
    while (at != q.end() && at->token < t.token) ++at;
    const double taken = at != q.end() && at->token == t.token ? at->probability : 0.0;
    if (t.probability <= taken) continue;
    rest.push_back({t.token, t.probability - taken});
    sum += rest.back().probability;
  }
  if (rest.empty()) return {p.begin(), p.end()};
  for (TokenProbability& t : rest) t.probability /= sum;
  return rest;
}

}  // namespace

Verdict verify(std::span<const std::vector<TokenProbability>> targets, std::span<const Proposal> proposals,
               const RandomKey& key) {
  RandomKey at = key;
  for (size_t i = 0; i < proposals.size(); ++i, ++at.position) {
    const Proposal& proposal = proposals[i];
    const double p = probability_of(targets[i], proposal.token);
    const double q = probability_of(proposal.distribution, proposal.token);
    if (random_uniform(at, kDrawAcceptance) * q < p) continue;
    const auto rest = residual(targets[i], proposal.distribution);
    return {static_cast<int32_t>(i), draw(rest, random_uniform(at, kDrawResidual))};
  }
  return {static_cast<int32_t>(proposals.size()), draw(targets[proposals.size()], random_uniform(at, kDrawToken))};
}

}  // namespace mdi
