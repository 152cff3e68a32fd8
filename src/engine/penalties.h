// What changes a row of logits before a token is chosen from it: penalties for tokens that occurred, biases, and the
// tokens that a grammar allows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampler.h"

namespace mdi {

// Which tokens occurred in a sequence: in its prompt, and how often among the generated ones.
class TokenHistory {
 public:
  void add_prompt(std::span<const int32_t> tokens);
  void push(int32_t token) { ++entries_[token].generated; }
  // Takes back a push of this token.
  void pop(int32_t token) { --entries_[token].generated; }

  struct Entry {
    bool prompt = false;
    int32_t generated = 0;
  };
  const std::unordered_map<int32_t, Entry>& entries() const { return entries_; }

 private:
  std::unordered_map<int32_t, Entry> entries_;
};

// One bit a token: word token / 32, bit token % 32; 1: may come next.
using TokenBits = std::span<uint32_t>;
inline size_t token_bit_words(int64_t vocab) { return static_cast<size_t>((vocab + 31) / 32); }

// The hook for grammars: which tokens may follow `generated` (what a request has generated after its prompt). A pure
// function of these tokens, called for committed tokens and for drafted ones that may yet be rejected, so there is no
// state that a rejection could leave behind; whoever implements it may remember states by prefix. Sets `bits` (given
// all zero) and returns true, or returns false when anything may follow. Called while a step runs, before the choice of
// its tokens, and while drafting: for one request by one thread at a time, not always the same one, and for different
// requests by several threads at once. What it throws is the request's own fault and ends it (EndReason::kInvalid).
using AllowedTokens = std::function<bool(std::span<const int32_t> generated, TokenBits bits)>;

// Whether any parameter needs a TokenHistory or changes a logit.
bool has_penalties(const SamplingParams& params);

// In place, fp32, in this order; `history` is looked at token by token, so a token's logit depends on its own entry
// only:
//   repetition: tokens of the prompt or generated: l > 0 ? l / r : l * r
//   frequency and presence: generated tokens: l - frequency * count - presence
//   bias: l + bias, for each entry of logit_bias
// Throws nothing; tokens outside the row are left out.
void apply_penalties(std::span<float> logits, const SamplingParams& params, const TokenHistory& history);

// Logits of tokens whose bit is 0 become -inf. Returns whether any token with a logit above -inf is left.
bool apply_allowed(std::span<float> logits, std::span<const uint32_t> bits);

}  // namespace mdi
