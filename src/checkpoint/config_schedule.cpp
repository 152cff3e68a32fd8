#include <algorithm>

#include "checkpoint/config.h"

namespace mdi {
namespace {

bool contains(const std::vector<int32_t>& sorted, int layer) {
  return std::binary_search(sorted.begin(), sorted.end(), layer);
}

// The last entry at or before `layer`; -1 if there is none.
int last_up_to(const std::vector<int32_t>& sorted, int layer) {
  const auto behind = std::upper_bound(sorted.begin(), sorted.end(), layer);
  return behind == sorted.begin() ? -1 : *std::prev(behind);
}

bool compressed(const ModelConfig& config, int layer) { return config.compress_ratios[static_cast<size_t>(layer)] > 0; }

}  // namespace

bool ModelConfig::is_kv_source(int layer) const { return contains(kv_source_layers, layer); }

bool ModelConfig::is_index_source(int layer) const { return contains(index_source_layers, layer); }

int ModelConfig::kv_source_of(int layer) const {
  return compressed(*this, layer) ? last_up_to(kv_source_layers, layer) : -1;
}

int ModelConfig::index_source_of(int layer) const {
  return compressed(*this, layer) ? last_up_to(index_source_layers, layer) : -1;
}

int ModelConfig::engram_index(int layer) const {
  const auto at = std::lower_bound(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return at != engram_layer_ids.end() && *at == layer ? static_cast<int>(at - engram_layer_ids.begin()) : -1;
}

}  // namespace mdi
