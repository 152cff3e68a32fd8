// The tokens that a sequence gets from the rows of logits of one step: penalties, allowed tokens, verification of
// proposals, log-probabilities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/logprobs.h"
#include "engine/penalties.h"
#include "engine/speculation.h"

namespace mdi {

// What a grammar allows at one place.
struct TokenMask {
  bool restricts = false;
  std::vector<uint32_t> bits;  // where it does (penalties.h, TokenBits)
  std::string fault;           // what the function threw; empty: nothing
};

// What the choice depends on besides the logits. Everything is a function of committed tokens.
struct SamplingSequence {
  const SamplingParams* params = nullptr;
  const AllowedTokens* allowed = nullptr;   // null or empty: everything
  std::optional<int32_t> logprobs = {};     // top logprobs, if any are wanted
  uint64_t sequence = 0;                    // of the random numbers: which sample
  uint64_t position = 0;                    // of the first token that is chosen
  TokenHistory* history = nullptr;          // null: the parameters need none; the same after the call as before
  std::span<const int32_t> generated = {};  // after the prompt
  std::span<const TokenMask> masks = {};    // add_masks() of these, made beforehand; empty: `allowed` is asked
};

enum class SamplingFault : uint8_t { kNone, kNotANumber, kNothingAllowed, kGrammar };

struct Chosen {
  int32_t accepted = 0;            // proposals
  std::vector<int32_t> tokens;     // accepted proposals and one token of the target's own; empty with a fault
  std::vector<Logprobs> logprobs;  // one a token, where wanted
  SamplingFault fault = SamplingFault::kNone;
  std::string error;  // kGrammar: TokenMask::fault
};

// Memory that the functions below use again.
struct SamplingScratch {
  std::vector<float> row;
  TokenMask mask;
  std::vector<int32_t> generated;
};

// Makes masks [1 + proposals] of what `allowed` says behind `generated` and behind each proposal; those that are there
// already are the first ones and stay.
void add_masks(const AllowedTokens& allowed, std::span<const int32_t> generated, std::span<const Proposal> proposals,
               int64_t vocab, std::vector<TokenMask>& masks);

// logits: [1 + proposals, vocab], of the rows behind which the token at `position`, position + 1, ... come.
Chosen choose_tokens(std::span<const float> logits, int64_t vocab, std::span<const Proposal> proposals,
                     const SamplingSequence& sequence, SamplingScratch& scratch);

// A draft's proposal behind the `before` ones, drawn from the draft's logits [vocab] under the same penalties and
// allowed tokens, so that it can be accepted. Where nothing is allowed or the row is not finite: token 0, surely (it
// is not accepted, because the target then has a fault of its own).
Proposal choose_proposal(std::span<const float> logits, std::span<const Proposal> before,
                         const SamplingSequence& sequence, SamplingScratch& scratch);

}  // namespace mdi
