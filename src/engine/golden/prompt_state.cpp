// What a sequence keeps after its prompt: window rings, compressed rows, index keys, unfinished pairs.
#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/golden/prompt.h"

namespace mdi::golden {
namespace {

// The slots of a ring that are stored: those that the sequence reached are ours, the others hold nothing and count as
// equal.
std::vector<float> stored_slots(const std::vector<float>& ring, const TensorView& stored, int64_t length) {
  const int64_t width = stored.shape[1], slots = static_cast<int64_t>(ring.size()) / width;
  const int64_t reached = std::min(length, slots);
  if (stored.shape[0] > slots || stored.shape[0] < reached) {
    throw Error("window_kv", "expected " + std::to_string(reached) + " to " + std::to_string(slots) + " slots, found " +
                                 shape_text(stored));
  }
  std::vector<float> rows(ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(reached * width));
  for (int64_t i = reached * width; i < stored.elements(); ++i) rows.push_back(static_cast<float>(element(stored, i)));
  return rows;
}

}  // namespace

void check_ring(const Prompt& p, const Phase& phase, const std::string& name, const GoldenSequence& sequence,
                int layer) {
  if (!p.file.has(phase.stored + name)) return;
  guarded(p, phase, name, [&] {
    const TensorView stored = p.file.get(phase.stored + name, DType::kBF16, {kAnySize, p.model.config().head_dim});
    const std::vector<float> rows = stored_slots(sequence.window(layer), stored, sequence.length());
    compare_stored(p, phase, name, view(rows), Kind::kFp8Rows);
  });
}

void check_state(const Prompt& p, const Phase& phase, const GoldenSequence& sequence) {
  const ModelConfig& c = p.model.config();
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (!phase.whole() && !phase.fed[static_cast<size_t>(layer)]) continue;
    check_ring(p, phase, layer_name(layer, "window_kv"), sequence, layer);
    if (!c.is_kv_source(layer)) continue;
    const int source = p.model.source_index(layer);
    compare_stored(p, phase, layer_name(layer, "compressed_kv"), view(sequence.compressed_rows(source)),
                   Kind::kFp4Rows);
    compare_stored(p, phase, layer_name(layer, "index_k"), view(sequence.index_keys(source)), Kind::kFp4Rows);
    if (sequence.length() % p.model.ratio(layer) == 0) continue;
    const std::vector<float> pair = sequence.pending(source);
    const auto half = pair.begin() + c.head_dim;
    compare_stored(p, phase, layer_name(layer, "compressor_kv_state"), view(std::vector<float>(pair.begin(), half)),
                   Kind::kMix);
    compare_stored(p, phase, layer_name(layer, "compressor_score_state"), view(std::vector<float>(half, pair.end())),
                   Kind::kMix);
  }
}

}  // namespace mdi::golden
