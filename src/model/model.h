// A loaded model: configuration, weights, and the small tables that follow from the configuration.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "model/vision_weights.h"
#include "model/weights.h"

namespace mdi {

// The hash of one engram layer (spec engram.md 2 to 4).
struct EngramHash {
  std::vector<int64_t> multipliers;  // [ngram]
  std::vector<int64_t> primes;       // [columns]
  std::vector<int64_t> offsets;      // [columns]
};

struct Model {
  Checkpoint checkpoint;  // owns the mapping that the weights point into
  Weights weights;
  VisionWeights vision;            // without a vision tower: empty
  std::vector<int32_t> token_map;  // [vocab] compressed ids; empty without engram layers
  std::vector<EngramHash> engram;  // one per engram layer
  std::vector<float> plain_frequencies, compressed_frequencies;
  std::vector<float> vision_frequencies;  // of the tower's 2-D rope (vision.md 2)

  const ModelConfig& config() const { return checkpoint.config(); }
  // Layer n_layers + s is draft stage s.
  const LayerWeights& layer(int index) const {
    const int backbone = config().n_layers;
    return index < backbone ? weights.layers[static_cast<size_t>(index)]
                            : weights.draft.stages[static_cast<size_t>(index - backbone)];
  }
  int draft_stages() const { return static_cast<int>(weights.draft.stages.size()); }
  int activated_experts(int layer) const {
    return layer < config().n_layers ? config().n_activated_experts : config().dspark_n_activated_experts;
  }
  int ratio(int layer) const { return config().compress_ratios[static_cast<size_t>(layer)]; }
  // Ratio-0 layers rotate by the plain table, the others by the YaRN table (6.2).
  RopeTable rope(int layer) const;
  // Position of the KV source that `layer` reads in kv_source_layers; -1 at ratio 0.
  int source_index(int layer) const;
};

// Takes or ignores every tensor. token_map is the map of engram.md 1, [vocab_size]; it may be empty only for a model
// without engram layers. Throws mdi::Error.
Model load_model(Checkpoint checkpoint, std::vector<int32_t> token_map);

}  // namespace mdi
