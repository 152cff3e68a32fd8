// The moduli of the engram hash (spec engram.md 2).
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

// [engram layer][n-gram - 2][head]: one ascending stream of primes above engram_vocab_size - 1, shared by all layers.
// A layer's table has one row per residue, so its rows are the sum of its primes. Needs only the engram_* sizes of
// `config`, within the limits that load_config holds them to.
std::vector<std::vector<std::vector<int64_t>>> engram_primes(const ModelConfig& config);

}  // namespace mdi
