// The odd multipliers of the engram hash (spec engram.md sections 3 and 4): drawn once, from a generator that every
// implementation must reproduce bit for bit, because the rows of the tables were trained under them.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

// [engram layer][j]: the multiplier of the token j places back, j = 0..engram_max_ngram_size-1. All are odd, positive
// and so small that a compressed id times its multiplier stays below 2^63. Throws mdi::Error when
// engram_compressed_vocab_size is not in 1..2^29 (beyond it the reference's generator takes another path).
std::vector<std::vector<int64_t>> engram_multipliers(const ModelConfig& config);

// One layer's, from the layer's id.
std::vector<int64_t> engram_layer_multipliers(int layer, int64_t compressed_vocab_size, int count);

}  // namespace mdi
