#include "checkpoint/inventory.h"

namespace mdi {
namespace {

int64_t blocks(int64_t n) { return (n + 31) / 32; }

// Collects the list; the part and the layer stay as set until they are set again.
struct Builder {
  const ModelConfig& c;
  std::vector<TensorSpec> specs;
  int layer = -1;

  void add(Part part, std::string name, DType dtype, int rank, int64_t d0, int64_t d1 = 0) {
    specs.push_back({std::move(name), dtype, rank, {d0, d1, 0, 0}, part, layer});
  }
  void vector(Part part, std::string name, DType dtype, int64_t n) { add(part, std::move(name), dtype, 1, n); }
  void matrix(Part part, std::string name, DType dtype, int64_t rows, int64_t columns) {
    add(part, std::move(name), dtype, 2, rows, columns);
  }
  // e4m3 [out, in] with a scale for each 32x32 tile.
  void fp8(Part part, const std::string& name, int64_t out, int64_t in) {
    matrix(part, name + ".weight", DType::kE4M3, out, in);
    matrix(part, name + ".scale", DType::kE8M0, blocks(out), blocks(in));
  }
  // e2m1 [out, in], two a byte, with a scale for each row and 32 columns.
  void fp4(Part part, const std::string& name, int64_t out, int64_t in) {
    matrix(part, name + ".weight", DType::kI8, out, in / 2);
    matrix(part, name + ".scale", DType::kE8M0, out, in / 32);
  }

  void attention(Part part, const std::string& p) {
    const int64_t heads = int64_t{c.n_heads} * c.head_dim, groups = int64_t{c.o_groups} * c.o_lora_rank;
    fp8(part, p + "attn.wq_a", c.q_lora_rank, c.dim);
    vector(part, p + "attn.q_norm.weight", DType::kBF16, c.q_lora_rank);
    fp8(part, p + "attn.wq_b", heads, c.q_lora_rank);
    fp8(part, p + "attn.wkv", c.head_dim, c.dim);
    vector(part, p + "attn.kv_norm.weight", DType::kBF16, c.head_dim);
    vector(part, p + "attn.attn_sink", DType::kF32, c.n_heads);
    fp8(part, p + "attn.wo_a", groups, heads / c.o_groups);
    fp8(part, p + "attn.wo_b", c.dim, groups);
  }

  void sources(const std::string& p) {
    if (c.is_kv_source(layer)) {
      matrix(Part::kCompressors, p + "attn.compressor.wkv.weight", DType::kBF16, c.head_dim, c.dim);
      if (c.compress_ratios[static_cast<size_t>(layer)] > 1) {  // one token a row needs no gate
        matrix(Part::kCompressors, p + "attn.compressor.wgate.weight", DType::kBF16, c.head_dim, c.dim);
      }
      vector(Part::kCompressors, p + "attn.compressor.norm.weight", DType::kBF16, c.head_dim);
    }
    if (c.is_index_source(layer)) {
      fp8(Part::kIndexers, p + "attn.indexer.wq_b", int64_t{c.index_n_heads} * c.index_head_dim, c.q_lora_rank);
      matrix(Part::kIndexers, p + "attn.indexer.weights_proj.weight", DType::kBF16, c.index_n_heads, c.dim);
    }
    if (c.is_kv_source(layer)) {
      matrix(Part::kIndexers, p + "attn.indexer.wk.weight", DType::kBF16, c.index_head_dim, c.head_dim);
      vector(Part::kIndexers, p + "attn.indexer.k_norm.weight", DType::kBF16, c.index_head_dim);
    }
  }

  void hyper_connections(Part part, const std::string& p) {
    const int64_t hc = c.hc_mult, mixes = (2 + hc) * hc;
    for (const char* sublayer : {"attn", "ffn"}) {
      const std::string name = p + "hc_" + sublayer;
      matrix(part, name + "_fn", DType::kF32, mixes, hc * c.dim);
      vector(part, name + "_base", DType::kF32, mixes);
      vector(part, name + "_scale", DType::kF32, 3);
    }
  }

  void experts(Part gate, Part shared, Part routed, const std::string& p, int count) {
    matrix(gate, p + "ffn.gate.weight", DType::kBF16, count, c.dim);
    vector(gate, p + "ffn.gate.bias", DType::kF32, count);
    if (c.has_vision) vector(gate, p + "ffn.gate.bias_vl", DType::kF32, count);
    for (int e = 0; e < count; ++e) {
      const std::string name = p + "ffn.experts." + std::to_string(e);
      fp4(routed, name + ".w1", c.moe_inter_dim, c.dim);
      fp4(routed, name + ".w2", c.dim, c.moe_inter_dim);
      fp4(routed, name + ".w3", c.moe_inter_dim, c.dim);
    }
    fp8(shared, p + "ffn.shared_experts.w1", c.moe_inter_dim, c.dim);
    fp8(shared, p + "ffn.shared_experts.w2", c.dim, c.moe_inter_dim);
    fp8(shared, p + "ffn.shared_experts.w3", c.moe_inter_dim, c.dim);
  }

  void norms(Part part, const std::string& p) {
    vector(part, p + "attn_norm.weight", DType::kBF16, c.dim);
    vector(part, p + "ffn_norm.weight", DType::kBF16, c.dim);
  }

  void engram(const std::string& p, size_t at) {
    const int64_t rows = c.engram_num_embeddings[at], columns = c.engram_head_dim;
    matrix(Part::kEngram, p + "engram.embed.weight", DType::kE4M3, rows, columns);
    matrix(Part::kEngram, p + "engram.embed.scale", DType::kE8M0, rows, columns / 32);
    fp8(Part::kEngram, p + "engram.wkv", (int64_t{c.hc_mult} + 1) * c.dim, c.engram_columns() * columns);
    matrix(Part::kEngram, p + "engram.q_weight", DType::kBF16, c.hc_mult, c.dim);
    matrix(Part::kEngram, p + "engram.k_weight", DType::kBF16, c.hc_mult, c.dim);
  }

  void backbone() {
    for (layer = 0; layer < c.n_layers; ++layer) {
      const std::string p = "layers." + std::to_string(layer) + ".";
      norms(Part::kHyperConnections, p);
      attention(Part::kAttention, p);
      sources(p);
      experts(Part::kGates, Part::kSharedExperts, Part::kRoutedExperts, p, c.n_routed_experts);
      hyper_connections(Part::kHyperConnections, p);
      const int table = c.engram_index(layer);
      if (table >= 0) engram(p, static_cast<size_t>(table));
    }
    layer = -1;
  }

  void draft() {
    constexpr Part kDense = Part::kDraftDense;
    for (int stage = 0; stage < c.n_mtp_layers; ++stage) {
      layer = c.n_layers + stage;
      const std::string p = "mtp." + std::to_string(stage) + ".";
      if (stage == 0) {
        fp8(kDense, p + "main_proj", c.dim, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * c.dim);
        vector(kDense, p + "main_norm.weight", DType::kBF16, c.dim);
      }
      norms(kDense, p);
      attention(kDense, p);
      experts(kDense, kDense, Part::kDraftExperts, p, c.dspark_n_routed_experts);
      hyper_connections(kDense, p);
      if (stage != c.n_mtp_layers - 1) continue;
      vector(kDense, p + "norm.weight", DType::kBF16, c.dim);
      matrix(kDense, p + "markov_head.embed.weight", DType::kBF16, c.vocab_size, c.dspark_markov_rank);
      matrix(kDense, p + "markov_head.head.weight", DType::kBF16, c.vocab_size, c.dspark_markov_rank);
      matrix(kDense, p + "confidence_head.proj.weight", DType::kBF16, 1, int64_t{c.dim} + c.dspark_markov_rank);
    }
    layer = -1;
  }

  // bf16 with a bias.
  void biased(const std::string& name, int64_t out, int64_t in) {
    matrix(Part::kVision, name + ".weight", DType::kBF16, out, in);
    vector(Part::kVision, name + ".bias", DType::kBF16, out);
  }

  void vision() {
    const VisionConfig& v = c.vision;
    const int64_t merged = int64_t{v.dim} * v.downsample_ratio * v.downsample_ratio;
    biased("vision.patch_embed.proj", v.dim, int64_t{3} * v.patch_size * v.patch_size);
    for (int block = 0; block < v.n_layers; ++block) {
      const std::string p = "vision.blocks." + std::to_string(block) + ".";
      vector(Part::kVision, p + "norm1.weight", DType::kBF16, v.dim);
      biased(p + "attn.wqkv", int64_t{3} * v.dim, v.dim);
      biased(p + "attn.wo", v.dim, v.dim);
      vector(Part::kVision, p + "norm2.weight", DType::kBF16, v.dim);
      matrix(Part::kVision, p + "mlp.w1.weight", DType::kBF16, int64_t{2} * v.inter_dim, v.dim);
      matrix(Part::kVision, p + "mlp.w2.weight", DType::kBF16, v.dim, v.inter_dim);
    }
    vector(Part::kVision, "vision.norm.weight", DType::kBF16, v.dim);
    biased("aligner.w1", c.dim, merged);
    biased("aligner.w2", c.dim, c.dim);
    for (const char* name : {"image_start", "image_end", "image_newline"}) {
      vector(Part::kFinalNorm, name, DType::kBF16, c.dim);
    }
  }
};

}  // namespace

const char* part_name(Part p) {
  switch (p) {
    case Part::kRoutedExperts:
      return "routed experts";
    case Part::kEngram:
      return "engram";
    case Part::kDraftExperts:
      return "draft routed experts";
    case Part::kAttention:
      return "attention";
    case Part::kSharedExperts:
      return "shared experts";
    case Part::kEmbedHead:
      return "embed and head";
    case Part::kVision:
      return "vision and aligner";
    case Part::kDraftDense:
      return "draft dense";
    case Part::kHyperConnections:
      return "hyper-connections and layer norms";
    case Part::kGates:
      return "gates";
    case Part::kIndexers:
      return "indexers";
    case Part::kCompressors:
      return "compressors";
    case Part::kFinalNorm:
      return "final norm and image delimiters";
    case Part::kCount:
      break;
  }
  return "?";
}

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
  return n;
}

int64_t TensorSpec::bytes() const { return elements() * static_cast<int64_t>(dtype_size(dtype)); }

std::vector<TensorSpec> inventory(const ModelConfig& config) {
  Builder builder{config, {}};
  builder.specs.reserve(static_cast<size_t>(64 + int64_t{64 + 6 * config.n_routed_experts} * config.n_layers +
                                            int64_t{64 + 6 * config.dspark_n_routed_experts} * config.n_mtp_layers));
  builder.matrix(Part::kEmbedHead, "embed.weight", DType::kBF16, config.vocab_size, config.dim);
  builder.matrix(Part::kEmbedHead, "head.weight", DType::kBF16, config.vocab_size, config.dim);
  builder.vector(Part::kFinalNorm, "norm.weight", DType::kBF16, config.dim);
  builder.backbone();
  builder.draft();
  if (config.has_vision) builder.vision();
  return std::move(builder.specs);
}

}  // namespace mdi
