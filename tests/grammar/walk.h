// Model-free answers: tokens drawn from the masks of a grammar.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../text/support.h"
#include "grammar/grammar.h"
#include "paced_limits.h"
#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/tokenizer.h"

namespace mdi {

inline const Tokenizer& full_tokenizer() { return test::v41_tokenizer(); }

// A little more than the tokenizer has, as a model's vocabulary is padded.
inline int64_t padded_vocab() { return full_tokenizer().size() + 45; }
inline int32_t eos_token() { return full_tokenizer().marker(marker::kEos).value(); }

// Walks ask what is allowed, many times with one grammar, and not how long that takes.
inline GrammarCompiler& full_compiler() {
  GrammarLimits limits = paced_limits();
  limits.max_mask_seconds = 3600;
  static GrammarCompiler compiler(full_tokenizer(), padded_vocab(), eos_token(), limits);
  return compiler;
}

inline GrammarSpec schema_spec(const std::string& schema, bool strict = true) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kJsonSchema;
  spec.schema = schema;
  spec.strict = strict;
  return spec;
}

inline bool bit(const std::vector<uint32_t>& bits, int64_t token) {
  return (bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}

struct Mask {
  explicit Mask(const GrammarSpec& spec, bool reasoning = false)
      : function(make_mask(full_compiler().compile(spec), reasoning)),
        bits(static_cast<size_t>((padded_vocab() + 31) / 32)) {}

  // Whether something is constrained; `bits` says what.
  bool operator()(const std::vector<int32_t>& generated) {
    std::fill(bits.begin(), bits.end(), 0);
    return function(generated, bits);
  }
  std::vector<int32_t> allowed(const std::vector<int32_t>& generated) {
    std::vector<int32_t> found;
    if (!(*this)(generated)) ADD_FAILURE() << "nothing is constrained";
    for (int64_t id = 0; id < padded_vocab(); ++id) {
      if (bit(bits, id)) found.push_back(static_cast<int32_t>(id));
    }
    return found;
  }

  GrammarMask function;
  std::vector<uint32_t> bits;
};

// Tokens that mostly end something.
inline const std::vector<int32_t>& closing_tokens() {
  static const std::vector<int32_t> kTokens = [] {
    std::vector<int32_t> ids;
    for (const char* text : {"\"",     "}", "]",    "\"}",  "\"]",     "</",   "<",  "\n",         ">\n",
                             "\">",    ",", ":",    "\":",  "0",       "1",    "a",  " parameter", " invoke",
                             " calls", ">", "\n</", "\n\n", " string", "\"\n", "}\n"}) {
      const std::vector<int32_t> encoded = full_tokenizer().encode(text);
      if (encoded.size() == 1) ids.push_back(encoded[0]);
    }
    ids.push_back(full_tokenizer().marker(marker::kDsml).value());
    return ids;
  }();
  return kTokens;
}

// A whole answer, eos included, or nothing when it does not end within max_tokens. Drawn uniformly from the mask, or
// from its tokens that end something: the latter alone once half of the tokens are used.
inline std::optional<std::vector<int32_t>> walk(Mask& mask, std::mt19937_64& random, size_t max_tokens = 400) {
  std::vector<int32_t> generated;
  while (generated.size() < max_tokens) {
    const std::vector<int32_t> allowed = mask.allowed(generated);
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow: " << full_tokenizer().decode(generated);
      return std::nullopt;
    }
    std::vector<int32_t> closing;
    for (const int32_t id : closing_tokens()) {
      if (std::binary_search(allowed.begin(), allowed.end(), id)) closing.push_back(id);
    }
    const bool may_end = bit(mask.bits, eos_token());
    const bool late = generated.size() > max_tokens / 2;
    if (may_end && (late || random() % 4 == 0)) {
      generated.push_back(eos_token());
      return generated;
    }
    const std::vector<int32_t>& from = !closing.empty() && (late || random() % 2 == 0) ? closing : allowed;
    generated.push_back(from[random() % from.size()]);
    if (generated.back() == eos_token()) return generated;
  }
  return std::nullopt;
}

// What a client gets of an answer.
inline ChatReply parse_answer(const std::vector<int32_t>& generated, bool reasoning = false) {
  ChatParser parser(full_tokenizer(), reasoning);
  std::vector<ChatEvent> events;
  for (const int32_t id : generated) parser.push(id, events);
  parser.finish(ReplyEnd::kStop, events);
  return parser.reply();
}

// Whether the tokens of this text, eos behind them, are an answer that the grammar allows.
inline bool allows(Mask& mask, const std::string& text) {
  std::vector<int32_t> ids = full_tokenizer().encode(text, Markers::kText), before;
  ids.push_back(eos_token());
  for (const int32_t id : ids) {
    mask(before);
    if (!bit(mask.bits, id)) return false;
    before.push_back(id);
  }
  return true;
}

}  // namespace mdi
