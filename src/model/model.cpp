#include "model/model.h"

#include <algorithm>

#include "checkpoint/engram_multipliers.h"
#include "checkpoint/engram_primes.h"
#include "core/error.h"
#include "kernels/cpu/reference.h"

namespace mdi {

namespace {

std::vector<EngramHash> engram_hashes(const ModelConfig& config) {
  const auto primes = engram_primes(config);
  const auto multipliers = engram_multipliers(config);
  std::vector<EngramHash> hashes;
  for (size_t layer = 0; layer < primes.size(); ++layer) {
    EngramHash hash{.multipliers = multipliers[layer], .primes = {}, .offsets = {}};
    int64_t offset = 0;
    for (const auto& heads : primes[layer]) {
      for (int64_t prime : heads) {
        hash.primes.push_back(prime);
        hash.offsets.push_back(offset);
        offset += prime;
      }
    }
    hashes.push_back(std::move(hash));
  }
  return hashes;
}

}  // namespace

RopeTable Model::rope(int layer) const {
  const auto& frequencies = ratio(layer) == 0 ? plain_frequencies : compressed_frequencies;
  return {.inv_freq = frequencies.data(), .rope_dim = config().rope_head_dim};
}

int Model::source_index(int layer) const {
  const auto& sources = config().kv_source_layers;
  const auto it = std::find(sources.begin(), sources.end(), config().kv_source_of(layer));
  return it == sources.end() ? -1 : static_cast<int>(it - sources.begin());
}

Model load_model(Checkpoint checkpoint, std::vector<int32_t> token_map) {
  const ModelConfig& c = checkpoint.config();
  if (!c.engram_layer_ids.empty() && token_map.size() != static_cast<size_t>(c.vocab_size)) {
    throw Error(checkpoint.dir().string(), "the engram layers need a token map of " + std::to_string(c.vocab_size) +
                                               " entries, found " + std::to_string(token_map.size()));
  }
  Weights weights = take_weights(checkpoint);
  VisionWeights vision;
  std::vector<float> vision_frequencies;
  if (c.has_vision) {
    vision = take_vision(checkpoint);
    const int32_t rope_dim = c.vision.dim / c.vision.n_heads / 2;
    vision_frequencies.resize(static_cast<size_t>(rope_dim / 2));
    cpu::rope_frequencies({.rope_dim = rope_dim, .theta = c.vision.rope_theta}, vision_frequencies.data());
  }
  checkpoint.finish();

  std::vector<float> plain(static_cast<size_t>(c.rope_head_dim / 2));
  std::vector<float> compressed(plain.size());
  cpu::rope_frequencies({.rope_dim = c.rope_head_dim, .theta = c.rope_theta}, plain.data());
  cpu::rope_frequencies({.rope_dim = c.rope_head_dim,
                         .theta = c.compress_rope_theta,
                         .factor = c.rope_factor,
                         .beta_fast = c.beta_fast,
                         .beta_slow = c.beta_slow,
                         .original_seq_len = c.original_seq_len},
                        compressed.data());
  std::vector<EngramHash> hashes = engram_hashes(c);
  return Model{.checkpoint = std::move(checkpoint),
               .weights = std::move(weights),
               .vision = std::move(vision),
               .token_map = std::move(token_map),
               .engram = std::move(hashes),
               .plain_frequencies = std::move(plain),
               .compressed_frequencies = std::move(compressed),
               .vision_frequencies = std::move(vision_frequencies)};
}

}  // namespace mdi
