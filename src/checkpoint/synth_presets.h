// The shapes that `mdi synth` can write, and how a shape is made smaller or larger.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

// "tiny": 8 + 2 layers, width 128: the shape of the golden text checkpoint, for tests.
// "tiny-vision": 5 + 1 layers with a vision tower: the shape of the golden vision checkpoint.
// "slice": the released widths with 6 + 1 layers, 8 experts, 4,096 tokens and small engram tables; one layer of every
//   kind (window only, full with engram, reuse, candidate source, reuse of it, reindex). 2.6 GB.
// "released": the published configuration (spec model.md 1).
// Throws mdi::Error for any other name, listing these.
ModelConfig synth_preset(std::string_view name);
std::vector<std::string_view> synth_preset_names();

// Changes to a configuration. What depends on a changed value follows: the schedules, the draft targets, the token ids
// that must lie inside the vocabulary, the engram tables' rows (from the primes).
struct ShapeOverrides {
  std::optional<int> layers{};            // fewer: the first ones; more: the last ratio goes on (layers that reuse)
  std::optional<int> draft_layers{};      // 0: none
  std::optional<int> experts{};           // routed experts of a backbone layer
  std::optional<int> draft_experts{};     // routed experts of a draft layer
  std::optional<int> vocab{};             // tokens
  std::optional<int64_t> engram_vocab{};  // the size above which the table primes start
  bool no_vision = false;
};

// Throws mdi::Error naming the option when a value is out of range.
void apply_overrides(ModelConfig& config, const ShapeOverrides& overrides);

}  // namespace mdi
