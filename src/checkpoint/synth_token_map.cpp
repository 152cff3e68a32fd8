#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "checkpoint/engram_multipliers.h"
#include "checkpoint/engram_primes.h"
#include "checkpoint/synth.h"
#include "checkpoint/synth_recipe.h"

namespace mdi {

namespace {

// Every compressed id at least once where the vocabulary has room for that, in random order.
std::vector<int64_t> random_map(const ModelConfig& config, uint64_t seed) {
  const uint64_t key = name_key("engram_token_map", seed);
  const auto compressed = static_cast<uint64_t>(config.engram_compressed_vocab_size);
  std::vector<int64_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int64_t>(i < compressed ? i : random_at(key, i) % compressed);
  }
  for (size_t i = map.size(); i > 1; --i) {
    std::swap(map[i - 1], map[random_at(key + 1, i) % i]);
  }
  return map;
}

}  // namespace

std::string synthetic_token_map(const ModelConfig& config, uint64_t seed) {
  const auto map = random_map(config, seed);
  const auto primes = engram_primes(config);
  std::vector<std::vector<int64_t>> offsets;
  for (const auto& layer : primes) {
    std::vector<int64_t> row;
    int64_t at = 0;
    for (const auto& ngram : layer) {
      for (const int64_t prime : ngram) {
        row.push_back(at);
        at += prime;
      }
    }
    offsets.push_back(row);
  }
  nlohmann::ordered_json j;
  j["compressed_vocab_size"] = config.engram_compressed_vocab_size;
  j["pad_token_id"] = config.engram_pad_id;
  j["compressed_pad_id"] = map[static_cast<size_t>(config.engram_pad_id)];
  j["token_map"] = map;
  j["layer_ids"] = config.engram_layer_ids;
  j["primes"] = primes;
  j["offsets"] = offsets;
  j["multipliers"] = engram_multipliers(config);
  return j.dump() + "\n";
}

}  // namespace mdi
