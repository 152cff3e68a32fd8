#include "checkpoint/config_fields.h"

namespace mdi {
namespace {

using M = ModelConfig;
using V = VisionConfig;
using enum KeyPlace;
using enum KeyGroup;

// The upper limits are far above any model of this family. They keep every product of sizes well inside 64 bits and the
// inventory's memory bounded, whatever the file says.
constexpr double kToken = 1 << 24;
constexpr double kWidth = 1 << 17;
constexpr double kLayer = 1024;
constexpr double kHeads = 1024;
constexpr double kHeadDim = 4096;
constexpr double kTiny = 1e-37;  // smallest number that stays a normal float
constexpr double kMany = 1e6;

constexpr ConfigField<M> kModelFields[] = {
    {"bos_token_id", "bos_token_id", kTop, kTokenIds, &M::bos_token_id, 0, kToken},
    {"eos_token_id", "eos_token_id", kTop, kTokenIds, &M::eos_token_id, 0, kToken},
    {"pad_token_id", "pad_token_id", kTop, kTokenIds, &M::pad_token_id, 0, kToken},
    {"vocab_size", "vocab_size", kText, kAlways, &M::vocab_size, 1, kToken},
    {"dim", "hidden_size", kText, kAlways, &M::dim, 1, kWidth},
    {"moe_inter_dim", "moe_intermediate_size", kText, kAlways, &M::moe_inter_dim, 1, kWidth},
    {"n_layers", "num_hidden_layers", kText, kAlways, &M::n_layers, 1, kLayer},
    {"n_heads", "num_attention_heads", kText, kAlways, &M::n_heads, 1, kHeads},
    {"head_dim", "head_dim", kText, kAlways, &M::head_dim, 1, kHeadDim},
    {"rope_head_dim", "qk_rope_head_dim", kText, kAlways, &M::rope_head_dim, 2, kHeadDim},
    {"q_lora_rank", "q_lora_rank", kText, kAlways, &M::q_lora_rank, 1, kWidth},
    {"o_lora_rank", "o_lora_rank", kText, kAlways, &M::o_lora_rank, 1, kWidth},
    {"o_groups", "o_groups", kText, kAlways, &M::o_groups, 1, kHeads},
    {"swiglu_limit", "swiglu_limit", kText, kAlways, &M::swiglu_limit, 1e-6, kMany},
    {"norm_eps", "rms_norm_eps", kText, kAlways, &M::norm_eps, kTiny, 1},
    {"rope_theta", "rope_theta", kText, kAlways, &M::rope_theta, 2, 1e15},
    {"compress_rope_theta", "compress_rope_theta", kText, kAlways, &M::compress_rope_theta, 2, 1e15},
    {"rope_factor", "factor", kRope, kAlways, &M::rope_factor, 1, kMany},
    {"beta_fast", "beta_fast", kRope, kAlways, &M::beta_fast, 1e-6, kMany},
    {"beta_slow", "beta_slow", kRope, kAlways, &M::beta_slow, 1e-6, kMany},
    {"original_seq_len", "original_max_position_embeddings", kRope, kAlways, &M::original_seq_len, 1, 1 << 30},
    {"max_position_embeddings", "max_position_embeddings", kText, kNested, &M::max_position_embeddings, 1, 1 << 30},
    {"n_routed_experts", "n_routed_experts", kText, kAlways, &M::n_routed_experts, 1, 65536},
    {"n_shared_experts", "n_shared_experts", kText, kAlways, &M::n_shared_experts, 1, 1},
    {"n_activated_experts", "num_experts_per_tok", kText, kAlways, &M::n_activated_experts, 1, 65536},
    {"route_scale", "routed_scaling_factor", kText, kAlways, &M::route_scale, 1e-6, kMany},
    {"window_size", "sliding_window", kText, kAlways, &M::window_size, 1, 1 << 20},
    {"n_mtp_layers", "num_nextn_predict_layers", kText, kAlways, &M::n_mtp_layers, 0, kLayer},
    {"compress_ratios", "compress_ratios", kText, kAlways, &M::compress_ratios, 0, 2},
    {"kv_source_layers", "kv_source_layer_ids", kText, kAlways, &M::kv_source_layers, 0, kLayer},
    {"index_source_layers", "index_source_layer_ids", kText, kAlways, &M::index_source_layers, 0, kLayer},
    {"index_n_heads", "index_n_heads", kText, kIndex, &M::index_n_heads, 1, kHeads},
    {"index_head_dim", "index_head_dim", kText, kIndex, &M::index_head_dim, 1, kHeadDim},
    {"index_topk", "index_topk", kText, kIndex, &M::index_topk, 1, 1 << 20},
    {"candidate_topk_blocks", "candidate_topk_blocks", kText, kCandidates, &M::candidate_topk_blocks, 1, 1 << 20},
    {"candidate_block_size", "candidate_block_size", kText, kCandidates, &M::candidate_block_size, 1, 1 << 16},
    {"hc_mult", "hc_mult", kText, kAlways, &M::hc_mult, 1, 8},
    {"hc_sinkhorn_iters", "hc_sinkhorn_iters", kText, kAlways, &M::hc_sinkhorn_iters, 1, 1000},
    {"hc_eps", "hc_eps", kText, kAlways, &M::hc_eps, kTiny, 1},
    {"engram_layer_ids", "engram_layer_ids", kText, kAlways, &M::engram_layer_ids, 0, kLayer},
    {"engram_num_embeddings", "engram_num_embeddings", kText, kEngram, &M::engram_num_embeddings, 1, 0x1p48},
    {"engram_max_ngram_size", "engram_max_ngram_size", kText, kEngram, &M::engram_max_ngram_size, 2, 16},
    {"engram_vocab_size", "engram_vocab_size", kText, kEngram, &M::engram_vocab_size, 2, 0x1p31},
    {"engram_n_heads", "engram_n_heads", kText, kEngram, &M::engram_n_heads, 1, kHeads},
    {"engram_head_dim", "engram_head_dim", kText, kEngram, &M::engram_head_dim, 1, kHeadDim},
    {"engram_pad_id", "engram_pad_token_id", kText, kEngram, &M::engram_pad_id, 0, kToken},
    {"engram_compressed_vocab_size", "engram_compressed_vocab_size", kText, kEngram, &M::engram_compressed_vocab_size,
     1, kToken},
    {"dspark_block_size", "dspark_block_size", kText, kDraft, &M::dspark_block_size, 1, 64},
    {"dspark_noise_token_id", "dspark_noise_token_id", kText, kDraft, &M::dspark_noise_token_id, 0, kToken},
    {"dspark_target_layer_ids", "dspark_target_layer_ids", kText, kDraft, &M::dspark_target_layer_ids, 0, kLayer},
    {"dspark_markov_rank", "dspark_markov_rank", kText, kDraft, &M::dspark_markov_rank, 1, kWidth},
    {"dspark_n_routed_experts", "dspark_n_routed_experts", kText, kDraft, &M::dspark_n_routed_experts, 1, 65536},
    {"dspark_n_activated_experts", "dspark_num_experts_per_tok", kText, kDraft, &M::dspark_n_activated_experts, 1,
     65536},
};

// max_wh_ratio is not here: null is one of its values.
constexpr ConfigField<V> kVisionFields[] = {
    {"vision_n_layers", "num_hidden_layers", kTop, kAlways, &V::n_layers, 1, kLayer},
    {"vision_dim", "hidden_size", kTop, kAlways, &V::dim, 4, 1 << 15},
    {"vision_n_heads", "num_attention_heads", kTop, kAlways, &V::n_heads, 1, kHeads},
    {"vision_inter_dim", "intermediate_size", kTop, kAlways, &V::inter_dim, 1, kWidth},
    {"vision_patch_size", "patch_size", kTop, kAlways, &V::patch_size, 1, 64},
    {"vision_rope_theta", "rope_theta", kTop, kAlways, &V::rope_theta, 2, 1e15},
    {"vision_downsample_ratio", "downsample_ratio", kTop, kAlways, &V::downsample_ratio, 1, 8},
    {"vision_max_n_token", "max_image_tokens", kTop, kAlways, &V::max_n_token, 4, 1 << 20},
    {"vision_min_pixels", "min_pixels", kTop, kAlways, &V::min_pixels, 0, 1 << 30},
};

}  // namespace

std::span<const ConfigField<ModelConfig>> model_fields() { return kModelFields; }
std::span<const ConfigField<VisionConfig>> vision_fields() { return kVisionFields; }

bool group_applies(KeyGroup group, const ModelConfig& config) {
  switch (group) {
    case kIndex:
      return !config.kv_source_layers.empty();
    case kCandidates:
      return config.candidate_source_layer >= 0;
    case kEngram:
      return !config.engram_layer_ids.empty();
    case kDraft:
      return config.n_mtp_layers > 0;
    default:
      return true;
  }
}

std::string key_name(ConfigForm form, std::string_view flat) {
  if (form == ConfigForm::kFlat) return std::string(flat);
  if (flat == "candidate_source_layer") return "text_config.candidate_source_layer_id";
  for (const auto& field : kModelFields) {
    if (flat != field.flat) continue;
    if (field.place == kTop) return field.nested;
    return std::string(field.place == kRope ? "text_config.rope_scaling." : "text_config.") + field.nested;
  }
  for (const auto& field : kVisionFields) {
    if (flat == field.flat) return std::string("vision_config.") + field.nested;
  }
  return std::string(flat);
}

}  // namespace mdi
