#include "engine/bench/floors.h"

#include <algorithm>

namespace mdi::bench {

namespace {

double fp8_row(double n) { return n * 33 / 32; }

// One layer of a step, with `rows` rows.
class LayerFloors {
 public:
  LayerFloors(const ModelConfig& config, const StepShape& shape, int layer, double rows)
      : c_(config), s_(shape), layer_(layer), r_(rows) {}

  PerStage<double> sum() const {
    PerStage<double> ms{};
    // The stream, once in and once out of both sublayers; the mixes' weights are fp32.
    ms[Stage::kStream] = 2 * Work{.bytes = 4 * r_ * hc() * dim() + 4 * (2 + hc()) * hc() * hc() * dim()}.floor_ms();
    ms[Stage::kProjections] = input().floor_ms() + output().floor_ms() + compress().floor_ms();
    ms[Stage::kAttention] = attention().floor_ms();
    if (ratio() > 0 && c_.is_index_source(layer_)) {
      ms[Stage::kIndexScores] = scores().floor_ms();
      ms[Stage::kSelection] = Work{.bytes = 2 * r_ * scored()}.floor_ms();  // one read of bf16 scores
    }
    ms[Stage::kGate] =
        Work{.bytes = 2 * r_ * dim() + 2 * dim() * c_.n_routed_experts, .bf16 = 2 * r_ * dim() * c_.n_routed_experts}
            .floor_ms();
    add_experts(ms);
    if (c_.engram_index(layer_) >= 0) ms[Stage::kEngram] = engram().floor_ms();
    return ms;
  }

  double operation(std::string_view name) const {
    const PerStage<double> ms = sum();
    if (name == "hc collapse") return Work{.bytes = 2 * r_ * (hc() + 1) * dim()}.floor_ms();
    if (name == "hc expand") return Work{.bytes = 2 * r_ * (2 * hc() + 1) * dim()}.floor_ms();
    if (name == "attention input") return input().floor_ms();
    if (name == "attention output") return output().floor_ms();
    if (name == "compress") return compress().floor_ms();
    if (name == "index select") return ms[Stage::kIndexScores] + ms[Stage::kSelection];
    if (name == "sparse attention") return ms[Stage::kAttention];
    if (name == "gate") return ms[Stage::kGate];
    if (name == "routed experts") return ms[Stage::kExchange] + ms[Stage::kRouted];
    if (name == "shared expert") return ms[Stage::kShared];
    if (name == "engram") return ms[Stage::kEngram];
    return 0;
  }

 private:
  double dim() const { return c_.dim; }
  double hc() const { return c_.hc_mult; }
  double width() const { return static_cast<double>(c_.n_heads) * c_.head_dim; }
  int ratio() const { return c_.compress_ratios[static_cast<size_t>(layer_)]; }
  double new_tokens() const { return static_cast<double>(s_.rows) / static_cast<double>(s_.sequences); }

  // Compressed rows that a query sees, on average: the last r_ / sequences positions of the context.
  double visible() const {
    const double each = r_ / static_cast<double>(s_.sequences);
    return ratio() == 0 ? 0 : (static_cast<double>(s_.context) - (each - 1) / 2) / ratio();
  }
  bool filtered() const { return c_.candidate_source_layer >= 0 && layer_ > c_.candidate_source_layer; }
  double scored() const {
    if (!filtered()) return visible();
    return std::min(visible(), static_cast<double>(c_.candidate_topk_blocks) * c_.candidate_block_size);
  }
  // Different rows among `each` of every query, if they are spread as widely as they can be.
  double distinct(double each) const {
    return std::min(r_ * each, static_cast<double>(s_.sequences) * static_cast<double>(s_.context) / ratio());
  }

  Work input() const {
    const double a = dim() * c_.q_lora_rank, b = c_.q_lora_rank * width(), kv = dim() * c_.head_dim;
    return {.bytes = fp8_row(1) * (a + b + kv) + r_ * (2 * dim() + 2 * width()), .fp8 = 2 * r_ * (a + b + kv)};
  }
  Work output() const {
    const double ranks = static_cast<double>(c_.o_groups) * c_.o_lora_rank;
    const double a = ranks * width() / c_.o_groups, b = ranks * dim();
    return {.bytes = a + b + r_ * (2 * width() + 2 * dim()), .fp8 = 2 * r_ * b, .bf16 = 2 * r_ * a};
  }
  Work compress() const {
    if (ratio() == 0 || !c_.is_kv_source(layer_)) return {};
    const double rows = static_cast<double>(s_.rows);  // a KV source computes them all
    const double kv = dim() * c_.head_dim * (ratio() > 1 ? 2 : 1);
    return {.bytes = 2 * kv + 2 * rows * dim(), .bf16 = 2 * rows * kv};
  }
  Work attention() const {
    const double window = std::min<double>(c_.window_size, static_cast<double>(s_.context));
    const double selected = ratio() == 0 ? 0 : std::min<double>(c_.index_topk, visible());
    const double window_rows = static_cast<double>(s_.sequences) * window + r_;
    double bytes = 4 * r_ * width() + window_rows * fp8_row(c_.head_dim);
    if (selected > 0) bytes += distinct(selected) * c_.head_dim * (0.5 + 1.0 / 16);
    return {.bytes = bytes, .bf16 = 4 * r_ * width() * (window + selected)};
  }
  Work scores() const {
    const double heads = c_.index_n_heads, key = c_.index_head_dim;
    const double queries = c_.q_lora_rank * heads * key;
    return {.bytes = queries + distinct(scored()) * key * (0.5 + 1.0 / 32) + 2 * r_ * (dim() + c_.q_lora_rank),
            .fp8 = 2 * r_ * (queries + heads * key * scored()),
            .bf16 = 2 * r_ * dim() * heads};
  }
  Work engram() const {
    const double in = static_cast<double>(c_.engram_columns()) * c_.engram_head_dim, out = (hc() + 1) * dim();
    return {.bytes = r_ * fp8_row(in) + in * out + 4 * r_ * hc() * dim(), .fp8 = 2 * r_ * in * out};
  }
  void add_experts(PerStage<double>& ms) const {
    const double inter = c_.moe_inter_dim, weights = 3 * dim() * inter;
    const ExpertLoad& load = s_.load[static_cast<size_t>(layer_)];
    // A layer with fewer rows has so many fewer choices.
    const double share = r_ / static_cast<double>(s_.rows);
    const double rows = static_cast<double>(load.rows) * share;
    const double active = std::min(static_cast<double>(load.active), rows);
    ms[Stage::kRouted] = Work{.bytes = active * weights * (0.5 + 1.0 / 32) + rows * (fp8_row(dim()) + 2 * dim()),
                              .fp8 = 2 * rows * weights}
                             .floor_ms();
    // Rows into the experts' order in fp8; results and sums in bf16.
    const double gathered = 2 * rows * fp8_row(dim()), combined = 2 * rows * dim() + 2 * s_.ranks * r_ * dim();
    const double received = s_.ranks > 1 ? 2 * (s_.ranks + 1) * r_ * dim() : 0;
    ms[Stage::kExchange] = Work{.bytes = gathered + combined + received}.floor_ms();
    ms[Stage::kShared] = Work{.bytes = weights + r_ * 6 * dim(), .fp8 = 2 * r_ * weights}.floor_ms();
  }

  const ModelConfig& c_;
  const StepShape& s_;
  int layer_;
  double r_;
};

}  // namespace

PerStage<double> step_floors(const ModelConfig& config, const StepShape& shape) {
  PerStage<double> total{};
  const int last_source = config.kv_source_layers.empty() ? -1 : config.kv_source_layers.back();
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const bool upper =
        shape.kept < shape.rows && (layer > last_source || (layer == last_source && shape.bounds_source));
    const auto rows = static_cast<double>(upper ? shape.kept : shape.rows);
    const PerStage<double> ms = LayerFloors(config, shape, layer, rows).sum();
    for (size_t i = 0; i < kStages; ++i) {
      const auto stage = static_cast<Stage>(i);
      total[upper ? Stage::kReplayTail : stage] += ms[stage];
    }
  }
  const auto rows = static_cast<double>(shape.rows);
  const double each = std::min<double>(config.window_size, rows / static_cast<double>(shape.sequences));
  const Work rings{.bytes =
                       2 * static_cast<double>(shape.sequences) * each * config.n_layers * fp8_row(config.head_dim)};
  total[Stage::kOther] =
      operation_floor(config, shape, -1, "embed") + operation_floor(config, shape, -1, "head") + rings.floor_ms();
  return total;
}

double operation_floor(const ModelConfig& config, const StepShape& shape, int layer, std::string_view name) {
  if (layer >= 0) return LayerFloors(config, shape, layer, static_cast<double>(shape.rows)).operation(name);
  const double dim = config.dim, vocab = config.vocab_size, samples = static_cast<double>(shape.samples);
  if (name == "embed") {
    return Work{.bytes = 2 * static_cast<double>(shape.rows) * dim * (1 + config.hc_mult)}.floor_ms();
  }
  if (name == "head" && samples > 0) {
    return Work{.bytes = 2 * dim * vocab + 4 * samples * vocab, .bf16 = 2 * samples * dim * vocab}.floor_ms();
  }
  return 0;
}

double wire_bytes(const ModelConfig& config, const StepShape& shape) {
  const int last_source = config.kv_source_layers.empty() ? -1 : config.kv_source_layers.back();
  double bytes = 0;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const bool upper = layer > last_source || (layer == last_source && shape.bounds_source);
    const auto rows = static_cast<double>(upper ? shape.kept : shape.rows);
    bytes += (shape.ranks - 1) * rows * (fp8_row(config.dim) + 8.0 * config.n_activated_experts + 2.0 * config.dim);
  }
  return bytes;
}

}  // namespace mdi::bench
