// Cuts text into the pieces that byte-pair encoding never joins: linear-time matchers for the known split patterns.
//
// A rule cuts a text into its matches and the stretches between them; the next rule cuts each of those again, alone, so
// that look-ahead ends at a piece's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mdi {

enum class SplitRule : uint8_t {
  kDigits,  // up to three numbers
  kCjk,     // a run of Chinese characters and kana
  kWords,   // words, punctuation and white space of this model family
  kGpt2,    // the pattern of a ByteLevel pre-tokenizer with use_regex
};

// The regular expression that a rule implements, as tokenizer.json spells it; empty for kGpt2, which has no spelling.
std::string_view split_pattern(SplitRule rule);

struct PieceRange {
  size_t begin, end;
};

// The first match at or after `from`, or {text.size(), text.size()}. The text must be valid UTF-8.
PieceRange find_match(SplitRule rule, std::string_view text, size_t from);

// Calls sink(piece) for every piece of `text` in order; pieces are never empty and together are the text.
template <class Sink>
void split_pieces(std::span<const SplitRule> rules, std::string_view text, Sink&& sink) {
  if (rules.empty()) {
    if (!text.empty()) sink(text);
    return;
  }
  size_t at = 0;
  while (at < text.size()) {
    const PieceRange match = find_match(rules.front(), text, at);
    if (match.begin > at) split_pieces(rules.subspan(1), text.substr(at, match.begin - at), sink);
    if (match.end > match.begin) {
      split_pieces(rules.subspan(1), text.substr(match.begin, match.end - match.begin), sink);
    }
    at = match.end;
  }
}

}  // namespace mdi
