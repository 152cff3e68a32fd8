// tokenizer.json as it stands: read, checked for what this program implements, and nothing guessed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pre_tokenizer.h"

namespace mdi {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;     // decoding may skip it
  bool normalized = false;  // matched in a second pass over the text, after all tokens without this flag
};

struct TokenizerFile {
  // The vocabulary in the byte-level alphabet. A string with a character outside that alphabet stands for itself and is
  // never made by merging.
  struct Entry {
    size_t begin, size;  // in `bytes`
    int32_t id;
    bool byte_level;
  };
  std::string bytes;
  std::vector<Entry> vocabulary;
  // Each merge as two entries' bytes, in rank order.
  struct Pair {
    size_t begin, left_size, right_size;  // in `merge_bytes`, one behind the other
  };
  std::string merge_bytes;
  std::vector<Pair> merges;
  std::vector<AddedToken> added;
  std::vector<SplitRule> rules;
};

// Accepted: model BPE without dropout, unknown token, affixes or fallback; normalizer null or an empty sequence; the
// pre-tokenizers of this model family, or a ByteLevel one with use_regex; a ByteLevel decoder. Anything else throws
// mdi::Error(where, ...) naming the key. The post-processor is not used: no token is added around a text.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view where);

// The byte-level alphabet: every byte as one printable character. False, with `bytes` unchanged, when `text` has a
// character outside it.
bool append_from_byte_alphabet(std::string_view text, std::string& bytes);
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace mdi
