// The engram's compressed token ids, made from the tokenizer (spec engram.md section 1).
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace mdi {

struct EngramMap {
  std::vector<int32_t> ids;  // [tokenizer.size()] compressed id of each token
  int32_t count = 0;         // number of distinct compressed ids: 99,092 for the released tokenizer
};

// Tokens whose texts differ only in case, marks, width or white space share a compressed id. Some 0.2 s for the
// released tokenizer. Throws mdi::Error if the Unicode library cannot fold a text.
EngramMap engram_token_map(const Tokenizer& tokenizer);

}  // namespace mdi
