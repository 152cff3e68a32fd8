// How well a model predicts a text: bits per byte, teacher-forced.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/forward.h"
#include "text/tokenizer.h"

namespace mdi {

struct EvalOptions {
  int32_t context = 1024;  // tokens of a window
  // Tokens at a window's start that are only read, not scored. Windows overlap by as many, so that every token but the
  // text's first `prefix` ones is scored once.
  int32_t prefix = 0;
  // Under replay the prefix is a prompt that was prefilled that way, and the scored tokens are what is decoded after
  // it. It needs a prefix of more than `replay.rows` tokens, or nothing would be dropped.
  ReplaySettings replay = {};
  int32_t chunk = 256;  // tokens a step; the result does not depend on it
};

struct EvalResult {
  int64_t tokens = 0, bytes = 0;  // scored
  double bits = 0;                // -log2 of the tokens' probabilities, summed
  int64_t correct = 0;            // tokens that were the most likely one
  double seconds = 0;
  double bits_per_byte() const { return bits / static_cast<double>(bytes); }
};

// Called after each step with the scored tokens so far and in all.
using EvalProgress = std::function<void(int64_t done, int64_t total)>;

// The cost of tokens[1], tokens[2], ... given those before them in their window; tokens[0] is the begin token and has
// no cost. byte_count [vocab]: how many bytes of text a token stands for. Softmax in double precision. Throws
// mdi::Error for options that are out of range and a text without a token to score.
EvalResult evaluate(Context& context, const Model& model, std::span<const int32_t> tokens,
                    std::span<const int32_t> byte_count, const EvalOptions& options, const EvalProgress& progress = {});

// Bytes of text that each token of the vocabulary stands for; 0 for ids that the tokenizer does not have.
std::vector<int32_t> token_bytes(const Tokenizer& tokenizer, int32_t vocab);

}  // namespace mdi
