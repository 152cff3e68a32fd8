#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <exception>

namespace mdi {

namespace {

// The row as tokens are drawn from it, given the proposals before it.
struct Adjusted {
  std::span<const float> row;
  SamplingFault fault = SamplingFault::kNone;
  int32_t best = -1;  // its argmax, where that is known
  std::string error = {};
};

// `allowed` behind these tokens; `mask` is used again.
void ask(const AllowedTokens& allowed, std::span<const int32_t> generated, size_t words, TokenMask& mask) {
  mask.bits.assign(words, 0);
  mask.fault.clear();
  try {
    mask.restricts = allowed(generated, mask.bits);
  } catch (const std::exception& e) {
    mask.fault = e.what();
  }
}

Adjusted adjust(std::span<const float> logits, std::span<const Proposal> before, const SamplingSequence& s,
                SamplingScratch& scratch) {
  const int32_t best = argmax(logits);
  if (!std::isfinite(logits[static_cast<size_t>(best)])) return {logits, SamplingFault::kNotANumber};
  const bool masks = s.allowed != nullptr && *s.allowed;
  const bool penalties = has_penalties(*s.params);
  if (!masks && !penalties) return {.row = logits, .best = best};

  scratch.row.assign(logits.begin(), logits.end());
  if (penalties) {
    static const TokenHistory kNone;
    if (s.history != nullptr) {
      for (const Proposal& p : before) s.history->push(p.token);
    }
    apply_penalties(scratch.row, *s.params, s.history != nullptr ? *s.history : kNone);
    if (s.history != nullptr) {
      for (const Proposal& p : before) s.history->pop(p.token);
    }
  }
  if (masks) {
    const TokenMask* mask = &scratch.mask;
    if (!s.masks.empty()) {
      mask = &s.masks[before.size()];
    } else {
      scratch.generated.assign(s.generated.begin(), s.generated.end());
      for (const Proposal& p : before) scratch.generated.push_back(p.token);
      ask(*s.allowed, scratch.generated, token_bit_words(static_cast<int64_t>(logits.size())), scratch.mask);
    }
    if (!mask->fault.empty()) return {scratch.row, SamplingFault::kGrammar, -1, mask->fault};
    if (mask->restricts && !apply_allowed(scratch.row, mask->bits)) {
      return {scratch.row, SamplingFault::kNothingAllowed};
    }
  }
  return {scratch.row};
}

}  // namespace

void add_masks(const AllowedTokens& allowed, std::span<const int32_t> generated, std::span<const Proposal> proposals,
               int64_t vocab, std::vector<TokenMask>& masks) {
  std::vector<int32_t> tokens(generated.begin(), generated.end());
  for (size_t i = 0; i <= proposals.size(); ++i) {
    if (i > 0) tokens.push_back(proposals[i - 1].token);
    if (i >= masks.size()) ask(allowed, tokens, token_bit_words(vocab), masks.emplace_back());
  }
}

Chosen choose_tokens(std::span<const float> logits, int64_t vocab, std::span<const Proposal> proposals,
                     const SamplingSequence& s, SamplingScratch& scratch) {
  const auto row = [&](size_t i) { return logits.subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab)); };
  Chosen chosen;
  const RandomKey key{.seed = s.params->seed, .sequence = s.sequence, .position = s.position};
  if (proposals.empty()) {
    const Adjusted adjusted = adjust(row(0), {}, s, scratch);
    chosen.fault = adjusted.fault;
    chosen.error = adjusted.error;
    if (chosen.fault == SamplingFault::kNone) {
      const bool known = s.params->temperature == 0.0f && adjusted.best >= 0;
      chosen.tokens.push_back(known ? adjusted.best : sample(adjusted.row, *s.params, s.sequence, s.position));
    }
  } else {
    // Rows behind a proposal that the target rejects are never looked at: a fault there is not the sequence's.
    std::vector<std::vector<TokenProbability>> targets;
    targets.reserve(proposals.size() + 1);
    size_t usable = 0;
    for (; usable <= proposals.size(); ++usable) {
      const Adjusted adjusted = adjust(row(usable), proposals.first(usable), s, scratch);
      if (adjusted.fault != SamplingFault::kNone) {
        if (usable == 0) {
          chosen.fault = adjusted.fault;
          chosen.error = adjusted.error;
        }
        break;
      }
      targets.push_back(distribution(adjusted.row, *s.params));
    }
    if (chosen.fault == SamplingFault::kNone) {
      const Verdict verdict = verify(targets, proposals.first(usable - 1), key);
      chosen.accepted = verdict.accepted;
      for (int32_t i = 0; i < verdict.accepted; ++i) chosen.tokens.push_back(proposals[static_cast<size_t>(i)].token);
      chosen.tokens.push_back(verdict.next);
    }
  }
  if (s.logprobs) {
    for (size_t i = 0; i < chosen.tokens.size(); ++i) {
      chosen.logprobs.push_back(logprobs_of(row(i), chosen.tokens[i], *s.logprobs));
    }
  }
  return chosen;
}

Proposal choose_proposal(std::span<const float> logits, std::span<const Proposal> before, const SamplingSequence& s,
                         SamplingScratch& scratch) {
  const Adjusted adjusted = adjust(logits, before, s, scratch);
  if (adjusted.fault != SamplingFault::kNone) return {.token = 0, .distribution = {{.token = 0, .probability = 1.0}}};
  Proposal proposal{.token = 0, .distribution = distribution(adjusted.row, *s.params)};
  const RandomKey key{.seed = s.params->seed, .sequence = s.sequence, .position = s.position + before.size()};
  proposal.token = draw(proposal.distribution, random_uniform(key, kDrawProposal));
  return proposal;
}

}  // namespace mdi
