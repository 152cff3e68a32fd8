// Token ids to text one by one: what a stream shows is whole characters, and all of it together is what decode() gives.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mdi {

class Detokenizer {
 public:
  // The tokenizer must outlive it.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that this token completes, often empty inside a character. Throws as Tokenizer::decode does, and is then
  // unchanged.
  std::string push(int32_t id) {
    std::string text;
    if (!skip_special_ || !tokenizer_->is_special(id)) stream_.push(tokenizer_->bytes(id), text);
    return text;
  }
  // The end: a character that stayed unfinished is one U+FFFD. Ready for another stream afterwards.
  std::string finish() {
    std::string text;
    stream_.finish(text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace mdi
