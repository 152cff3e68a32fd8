#include "checkpoint/synth_recipe.h"

#include <algorithm>
#include <cmath>

namespace mdi {

namespace {

// The first rule whose ending fits the base name. `spread` is absolute, or in units of 1/sqrt(fan_in).
struct Rule {
  std::string_view ending;
  float mean;
  double spread;
  bool per_fan_in;
};

constexpr Rule kRules[] = {
    // Vectors.
    {"attn_sink", 0, 1, false},
    {"gate.bias", 0, 0.2, false},
    {"gate.bias_vl", 0, 0.2, false},
    {"hc_attn_base", 0, 0.6, false},
    {"hc_ffn_base", 0, 0.6, false},
    {"hc_attn_scale", 1.1f, 0.2, false},
    {"hc_ffn_scale", 1.1f, 0.2, false},
    {"norm", 1, 0.15, false},
    {"norm1", 1, 0.15, false},
    {"norm2", 1, 0.15, false},
    {"engram.q_weight", 1, 0.2, false},
    {"engram.k_weight", 1, 0.2, false},
    {"image_start", 0, 1, false},
    {"image_end", 0, 1, false},
    {"image_newline", 0, 1, false},
    {".bias", 0, 0.1, false},
    // Tables.
    {"embed", 0, 1, false},
    // Projections.
    {"hc_attn_fn", 0, 0.68, true},
    {"hc_ffn_fn", 0, 0.68, true},
    {"markov_head.head", 0, 1, true},
    {"head", 0, 2.2, true},
    {"ffn.gate", 0, 2, true},
    {"compressor.wgate", 0, 1.5, true},
    {"attn.wo_b", 0, 0.2, true},
    {"engram.wkv", 0, 0.12, true},
    {"w1", 0, 1.25, true},
};

bool has(std::string_view name, std::string_view piece) { return name.find(piece) != std::string_view::npos; }

std::string base_name(std::string_view name) {
  for (const std::string_view ending : {".weight", ".scale"}) {
    if (name.ends_with(ending)) return std::string(name.substr(0, name.size() - ending.size()));
  }
  return std::string(name);
}

// A projection that writes into the stream from a product of two others (silu(gate) * up) gets the share of the stream
// that the golden checkpoints give it, 5 to 10%.
bool is_down_projection(std::string_view base) { return has(base, "experts.") && base.ends_with(".w2"); }

// Queries against window + top-k keys: with scores of deviation s, softmax over n keys averages about n / exp(s^2) of
// them. This s leaves 12, at any n, so that attention's output does not fade where there are many keys.
double query_gain(const ModelConfig& c) {
  const double keys = c.window_size + c.index_topk;
  return std::sqrt(std::max(1.0, std::log(std::max(1.0, keys / 12))));
}

// "layers.3." of "layers.3.attn.wq_a"; empty outside the layers.
std::string layer_prefix(std::string_view base) {
  if (!base.starts_with("layers.") && !base.starts_with("mtp.")) return {};
  const size_t second = base.find('.', base.find('.') + 1);
  return second == std::string_view::npos ? std::string() : std::string(base.substr(0, second + 1));
}

// Which norm's output a projection reads.
std::string norm_before(std::string_view base) {
  const std::string layer = layer_prefix(base);
  if (layer.empty()) return {};
  const std::string_view rest = base.substr(layer.size());
  for (const std::string_view reader : {"attn_norm", "attn.wq_a", "attn.wkv", "attn.compressor.wkv",
                                        "attn.compressor.wgate", "attn.indexer.weights_proj"}) {
    if (rest == reader) return layer + "attn_norm";
  }
  for (const std::string_view reader : {"attn.q_norm", "attn.wq_b", "attn.indexer.wq_b"}) {
    if (rest == reader) return layer + "attn.q_norm";
  }
  const bool expert_input = has(rest, "experts.") && (rest.ends_with(".w1") || rest.ends_with(".w3"));
  if (rest == "ffn_norm" || rest == "ffn.gate" || expert_input) return layer + "ffn_norm";
  return {};
}

void set_storage(Recipe& r, const TensorSpec& spec) {
  const bool scale = spec.dtype == DType::kE8M0;
  const int64_t columns = spec.rank > 0 ? spec.shape[static_cast<size_t>(spec.rank - 1)] : 1;
  const bool routed = spec.part == Part::kRoutedExperts || spec.part == Part::kDraftExperts;
  r.fan_in = columns;
  if (scale) {
    r.storage = routed ? Recipe::Storage::kE2M1 : Recipe::Storage::kE4M3;
    r.fan_in = columns * 32;
  } else if (spec.dtype == DType::kI8) {
    r.storage = Recipe::Storage::kE2M1;
    r.fan_in = columns * 2;
  } else if (spec.dtype == DType::kE4M3) {
    r.storage = Recipe::Storage::kE4M3;
  }
  r.row_scales = routed || r.base.ends_with("engram.embed");
}

}  // namespace

uint64_t name_key(std::string_view name, uint64_t seed) {
  uint64_t h = 0xCBF29CE484222325u ^ (seed * 0x9E3779B97F4A7C15u);
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  h ^= h >> 32;
  return h * 0x9FB21C651E98DF25u;
}

Recipe tensor_recipe(const ModelConfig& config, const TensorSpec& spec) {
  Recipe r;
  r.base = base_name(spec.name);
  set_storage(r, spec);
  const double per_root = 1 / std::sqrt(static_cast<double>(r.fan_in));
  r.spread = per_root;
  for (const Rule& rule : kRules) {
    if (!std::string_view(r.base).ends_with(rule.ending)) continue;
    r.mean = rule.mean;
    r.spread = rule.per_fan_in ? rule.spread * per_root : rule.spread;
    break;
  }
  if (is_down_projection(r.base)) r.spread = 0.1 * per_root;
  if (r.base.ends_with("attn.wq_b")) r.spread = query_gain(config) * per_root;
  if (r.base == "head") r.row_spread = 0.5f;  // some tokens are likely everywhere, others hardly ever

  const bool in_layer = spec.layer >= 0;
  const bool matrix = spec.rank >= 2 && spec.part != Part::kVision && spec.part != Part::kHyperConnections;
  const bool table = r.base.ends_with("embed");
  const bool head = r.base.ends_with("head") || r.base.ends_with("proj");
  const bool gate = r.base.ends_with("ffn.gate");
  r.dead_rows = matrix && in_layer && !head && !gate && r.base.find("engram.q_") == std::string::npos &&
                r.base.find("engram.k_") == std::string::npos;
  r.zero_blocks = r.dead_rows && !table;
  r.routing = r.base.ends_with("gate.bias") || r.base.ends_with("gate.bias_vl");
  r.norm = norm_before(r.base);
  r.is_norm = !r.norm.empty() && r.base == r.norm;
  if (r.is_norm) r.zero_blocks = true;
  // A draft layer's wkv reads two norms (its own and main_norm), so nothing may be large there.
  r.large_channels = !r.base.starts_with("mtp.");
  return r;
}

}  // namespace mdi
