#include "model/state.h"

namespace mdi {

StatePools make_state(Context& context, const Model& model, int64_t slots, int64_t blocks) {
  const ModelConfig& c = model.config();
  StatePools state;
  std::vector<int32_t> ratios;
  for (int32_t layer : c.kv_source_layers) ratios.push_back(model.ratio(layer));
  state.cache = make_cache_layout(ratios, c.head_dim, c.index_head_dim);
  state.window_row = {c.head_dim};
  state.window = c.window_size;
  state.layers = c.n_layers + model.draft_stages();
  state.head_dim = c.head_dim;
  state.history_depth = c.engram_max_ngram_size > 0 ? c.engram_max_ngram_size - 1 : 0;
  state.blocks_count = blocks;
  state.slots = slots;
  state.blocks = DeviceBuffer(context, blocks * state.cache.block_bytes);
  state.rings = DeviceBuffer(context, slots * state.layers * c.window_size * state.window_row.bytes());
  state.pending = DeviceBuffer(context, slots * state.pending_stride() * static_cast<int64_t>(sizeof(float)));
  state.history = DeviceBuffer(context, slots * state.history_depth * static_cast<int64_t>(sizeof(int32_t)));
  for (int64_t slot = 0; slot < slots; ++slot) clear_slot(context, state, slot);
  return state;
}

void clear_slot(Context& context, StatePools& state, int64_t slot) {
  const std::vector<int32_t> none(static_cast<size_t>(state.history_depth), -1);
  context.ops->copy_in(context, state.history.as<int32_t>() + slot * state.history_depth, none.data(),
                       static_cast<int64_t>(none.size() * sizeof(int32_t)));
}

SourceCache StatePools::source(int index) const {
  return {.blocks = blocks.as<std::byte>(),
          .block_bytes = cache.block_bytes,
          .layout = cache.sources[static_cast<size_t>(index)]};
}

RingView StatePools::ring(int layer) const {
  const int64_t layer_bytes = int64_t{window} * window_row.bytes();
  return {.base = rings.as<std::byte>() + layer * layer_bytes,
          .slot_stride = layers * layer_bytes,
          .window = window,
          .row = window_row};
}

float* StatePools::pending_of(int source) const { return pending.as<float>() + int64_t{source} * 2 * head_dim; }

int64_t StatePools::pending_stride() const { return static_cast<int64_t>(cache.sources.size()) * 2 * head_dim; }

}  // namespace mdi
