// engram_token_map.json: token id -> compressed id, for checkpoints that bring the map instead of a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

// [vocab_size] ids below engram_compressed_vocab_size. Throws mdi::Error when the file does not fit the configuration;
// the primes, offsets and multipliers that it may repeat must equal those that follow from the configuration.
std::vector<int32_t> load_engram_token_map(const std::filesystem::path& file, const ModelConfig& config);

}  // namespace mdi
