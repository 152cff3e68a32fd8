#include "model/weights.h"

#include <string>

namespace mdi {

namespace {

// Takes tensors by name, in the shapes of the operations.
struct Taker {
  Checkpoint& checkpoint;

  TensorView view(const std::string& name) { return checkpoint.take(name); }
  const bf16* vector(const std::string& name) { return view(name).as<bf16>(); }
  const float* floats(const std::string& name) { return view(name).as<float>(); }

  LinearWeight linear(const std::string& name) {
    const TensorView t = view(name + ".weight");
    LinearWeight w{.kind = WeightKind::kBF16, .data = t.data, .scale = nullptr, .n = t.shape[0], .k = t.shape[1]};
    if (t.dtype == DType::kE4M3) w.kind = WeightKind::kE4M3;
    if (t.dtype == DType::kI8) {
      w.kind = WeightKind::kE2M1;
      w.k *= 2;
    }
    if (w.kind != WeightKind::kBF16) w.scale = view(name + ".scale").as<e8m0>();
    return w;
  }

  HcWeights hyper_connection(const std::string& name) {
    return {.fn = floats(name + "_fn"), .scale = floats(name + "_scale"), .base = floats(name + "_base")};
  }

  ExpertWeights expert(const std::string& name) {
    return {.w1 = linear(name + ".w1"), .w2 = linear(name + ".w2"), .w3 = linear(name + ".w3")};
  }

  AttentionWeights attention(const std::string& name) {
    AttentionWeights a;
    a.wq_a = linear(name + ".wq_a");
    a.wq_b = linear(name + ".wq_b");
    a.wkv = linear(name + ".wkv");
    a.wo_a = linear(name + ".wo_a");
    a.wo_b = linear(name + ".wo_b");
    a.q_norm = vector(name + ".q_norm.weight");
    a.kv_norm = vector(name + ".kv_norm.weight");
    a.sink = floats(name + ".attn_sink");
    return a;
  }

  MoeWeights moe(const std::string& name, int experts, bool vision) {
    MoeWeights m;
    m.gate = linear(name + ".gate");
    m.bias = floats(name + ".gate.bias");
    if (vision) m.bias_vl = floats(name + ".gate.bias_vl");
    for (int e = 0; e < experts; ++e) m.experts.push_back(expert(name + ".experts." + std::to_string(e)));
    m.shared = expert(name + ".shared_experts");
    return m;
  }

  LayerWeights layer(const std::string& name, int experts, bool vision) {
    LayerWeights l;
    l.attn_norm = vector(name + ".attn_norm.weight");
    l.ffn_norm = vector(name + ".ffn_norm.weight");
    l.hc_attn = hyper_connection(name + ".hc_attn");
    l.hc_ffn = hyper_connection(name + ".hc_ffn");
    l.attn = attention(name + ".attn");
    l.ffn = moe(name + ".ffn", experts, vision);
    return l;
  }
};

DraftWeights take_draft(Taker& take, const ModelConfig& config) {
  DraftWeights draft;
  if (config.n_mtp_layers == 0) return draft;
  for (int s = 0; s < config.n_mtp_layers; ++s) {
    const std::string name = "mtp." + std::to_string(s);
    draft.stages.push_back(take.layer(name, config.dspark_n_routed_experts, config.has_vision));
    draft.stages.back().ffn.bias_vl = nullptr;  // drafted tokens are text (dspark.md 3)
  }
  const std::string last = "mtp." + std::to_string(config.n_mtp_layers - 1);
  draft.main_proj = take.linear("mtp.0.main_proj");
  draft.main_norm = take.vector("mtp.0.main_norm.weight");
  draft.norm = take.vector(last + ".norm.weight");
  draft.markov_embed = take.vector(last + ".markov_head.embed.weight");
  draft.markov_head = take.linear(last + ".markov_head.head");
  draft.confidence_proj = take.linear(last + ".confidence_head.proj");
  return draft;
}

}  // namespace

Weights take_weights(Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  Weights weights;
  Taker take{.checkpoint = checkpoint};
  weights.embed = take.vector("embed.weight");
  weights.norm = take.vector("norm.weight");
  weights.head = take.linear("head");
  for (int i = 0; i < config.n_layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    LayerWeights layer = take.layer(name, config.n_routed_experts, config.has_vision);
    if (config.is_kv_source(i)) {
      layer.attn.compressor_wkv = take.linear(name + ".attn.compressor.wkv");
      if (config.compress_ratios[static_cast<size_t>(i)] > 1) {
        layer.attn.compressor_wgate = take.linear(name + ".attn.compressor.wgate");
      }
      layer.attn.compressor_norm = take.vector(name + ".attn.compressor.norm.weight");
      layer.attn.indexer_wk = take.linear(name + ".attn.indexer.wk");
      layer.attn.indexer_k_norm = take.vector(name + ".attn.indexer.k_norm.weight");
    }
    if (config.is_index_source(i)) {
      layer.attn.indexer_wq_b = take.linear(name + ".attn.indexer.wq_b");
      layer.attn.indexer_weights_proj = take.linear(name + ".attn.indexer.weights_proj");
    }
    if (config.engram_index(i) >= 0) {
      layer.engram.table = take.view(name + ".engram.embed.weight").as<e4m3>();
      layer.engram.scale = take.view(name + ".engram.embed.scale").as<e8m0>();
      layer.engram.wkv = take.linear(name + ".engram.wkv");
      layer.engram.q_weight = take.vector(name + ".engram.q_weight");
      layer.engram.k_weight = take.vector(name + ".engram.k_weight");
    }
    weights.layers.push_back(std::move(layer));
  }
  weights.draft = take_draft(take, config);
  return weights;
}

}  // namespace mdi
