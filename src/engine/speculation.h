// Accepting drafted tokens (spec dspark.md 5), without loss: what is emitted follows the target's distribution exactly,
// and greedy output equals plain greedy decoding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace mdi {

// A proposal and the distribution that it was drawn from, in ascending id.
struct Proposal {
  int32_t token = 0;
  std::vector<TokenProbability> distribution;
};

// Which random numbers of a position serve which purpose (random.h `draw`).
enum RandomUse : uint32_t { kDrawToken = 0, kDrawProposal = 1, kDrawAcceptance = 2, kDrawResidual = 3 };

struct Verdict {
  int32_t accepted = 0;  // proposals accepted, 0..k
  int32_t next = 0;      // the token after them, from the target
};

// targets[i] is the target's distribution, in ascending id, of the token at `position` + i, given the proposals before
// it; there is one more than there are proposals. Each proposal is accepted with probability min(1, p/q); the first
// that is not is replaced by a draw from max(p - q, 0), normalised; after all k comes a plain draw from targets[k].
Verdict verify(std::span<const std::vector<TokenProbability>> targets, std::span<const Proposal> proposals,
               const RandomKey& key);

}  // namespace mdi
