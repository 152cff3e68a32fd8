// Values inside the layers: sublayer inputs and outputs, mixes, router, streams.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "engine/golden/prompt.h"
#include "engine/golden/selection.h"

namespace mdi::golden {
namespace {

struct LayerValue {
  std::string_view name;
  Kind kind;
};

constexpr LayerValue kLayerValues[] = {
    {"hc_attn_pre", Kind::kMix},  {"hc_attn_post", Kind::kMix},       {"hc_attn_comb", Kind::kMix},
    {"attn_in", Kind::kSublayer}, {"attn_out", Kind::kSublayer},      {"hc_ffn_pre", Kind::kMix},
    {"hc_ffn_post", Kind::kMix},  {"hc_ffn_comb", Kind::kMix},        {"ffn_in", Kind::kSublayer},
    {"ffn_out", Kind::kSublayer}, {"gate_scores_biased", Kind::kMix}, {"out", Kind::kStream},
    {"pre_mix", Kind::kMix},      {"engram_out", Kind::kStream},
};

// How close each row's choice of experts was, by the stored scores, and how far our scores lie from them.
Freedom expert_freedom(const Prompt& prompt, const Phase& phase, int layer, int64_t topk) {
  Freedom freedom = Freedom::unknown(phase.rows);
  const std::string name = layer_name(layer, "gate_scores_biased");
  if (!prompt.file.has(phase.stored + name)) return freedom;
  const int64_t experts = prompt.model.config().n_routed_experts;
  const TensorView stored = prompt.file.get(phase.stored + name, DType::kF32, {phase.rows, experts});
  const float* own = phase.run.get(name).as<float>();
  for (int64_t i = 0; i < phase.rows; ++i) {
    const float* row = stored.as<float>() + i * experts;
    float moved = 0;
    for (int64_t e = 0; e < experts; ++e) moved = std::max(moved, std::abs(row[e] - own[i * experts + e]));
    std::vector<float> sorted(row, row + experts);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    freedom.moved[static_cast<size_t>(i)] = moved;
    freedom.margin[static_cast<size_t>(i)] =
        topk < experts ? sorted[static_cast<size_t>(topk - 1)] - sorted[static_cast<size_t>(topk)]
                       : std::numeric_limits<float>::infinity();
  }
  return freedom;
}

std::vector<int32_t> sorted_rows(const TensorView& t, int64_t rows, int64_t width) {
  std::vector<int32_t> sorted(t.as<int32_t>(), t.as<int32_t>() + rows * width);
  for (int64_t i = 0; i < rows; ++i) std::sort(sorted.begin() + i * width, sorted.begin() + (i + 1) * width);
  return sorted;
}

// Chosen experts as sets, and the weights of the rows that chose alike.
void check_experts(const Prompt& prompt, const Phase& phase, int layer) {
  const std::string name = layer_name(layer, "gate_indices"), weights_name = layer_name(layer, "gate_weights");
  if (!prompt.file.has(phase.stored + name)) return;
  const int64_t topk = prompt.model.config().n_activated_experts;
  const TensorView expected = prompt.file.get(phase.stored + name, DType::kI32, {phase.rows, topk});
  const TensorView found = phase.run.get(name);
  prompt.report.add(compare_selections(
      prompt.prefix + phase.shown + name, sorted_rows(found, phase.rows, topk), sorted_rows(expected, phase.rows, topk),
      topk, expert_freedom(prompt, phase, layer, topk), phase.whole() ? kWholeOverlap : kFedOverlap));

  if (!prompt.file.has(phase.stored + weights_name)) return;
  const TensorView weights = prompt.file.get(phase.stored + weights_name, DType::kF32, {phase.rows, topk});
  const TensorView found_weights = phase.run.get(weights_name);
  std::vector<float> alike(weights.as<float>(), weights.as<float>() + weights.elements());
  for (int64_t i = 0; i < phase.rows; ++i) {
    const int32_t* f = found.as<int32_t>() + i * topk;
    if (!std::equal(f, f + topk, expected.as<int32_t>() + i * topk)) continue;
    std::copy_n(found_weights.as<float>() + i * topk, topk, alike.begin() + i * topk);
  }
  compare_stored(prompt, phase, weights_name, view(alike, {phase.rows, topk}), Kind::kMix);
}

}  // namespace

bool compare_stored(const Prompt& prompt, const Phase& phase, const std::string& name, const TensorView& found,
                    Kind kind, int64_t row) {
  const std::string stored = phase.stored + name;
  if (!prompt.file.has(stored)) return false;
  guarded(prompt, phase, name, [&] {
    const Tolerances tolerances =
        phase.whole() ? whole_model(kind, stored, prompt.two_runs.moved(prompt.file_name, stored), phase.rows)
                      : fed_layer(kind);
    prompt.report.add(compare(prompt.prefix + phase.shown + name, found, prompt.file.get(stored), tolerances, row));
  });
  return true;
}

bool compare_exactly(const Prompt& prompt, const Phase& phase, const std::string& name, const TensorView& found) {
  const std::string stored = phase.stored + name;
  if (!prompt.file.has(stored)) return false;
  guarded(prompt, phase, name, [&] {
    prompt.report.add(compare(prompt.prefix + phase.shown + name, found, prompt.file.get(stored), {{Rule::kExact, 0}}));
  });
  return true;
}

void check_layer_values(const Prompt& prompt, const Phase& phase) {
  const ModelConfig& config = prompt.model.config();
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (!phase.whole() && !phase.fed[static_cast<size_t>(layer)]) continue;
    if (phase.whole() && config.engram_index(layer) >= 0) {
      const std::string name = layer_name(layer, "engram_hash_ids");
      compare_exactly(prompt, phase, name, phase.run.get(name));
    }
    for (const LayerValue& value : kLayerValues) {
      const std::string name = layer_name(layer, value.name);
      if (!prompt.file.has(phase.stored + name)) continue;
      if (!phase.run.has(name)) {
        prompt.report.fail(prompt.prefix + phase.shown + name, "stored, but this layer has no such value here");
        continue;
      }
      const TensorView found = phase.run.get(name);
      compare_stored(prompt, phase, name, found, value.kind, found.elements() / std::max<int64_t>(1, phase.rows));
    }
    guarded(prompt, phase, layer_name(layer, "gate_indices"), [&] { check_experts(prompt, phase, layer); });
  }
}

}  // namespace mdi::golden
