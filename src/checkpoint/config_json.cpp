#include "checkpoint/config_json.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

namespace mdi {

namespace {

using Json = nlohmann::ordered_json;

// 1e-20f as a double is 9.999999682655225e-21; the decimal that a person wrote is the shortest one that rounds to it.
double decimal(float v) { return std::stod(fmt::format("{}", v)); }

// A whole number without its ".0", as released configurations write theirs.
Json number(double v) {
  const auto whole = static_cast<int64_t>(v);
  if (static_cast<double>(whole) == v) return whole;
  return v;
}

Json text_config(const ModelConfig& c) {
  Json j;
  j["model_type"] = "deepseek_v41_text";
  j["vocab_size"] = c.vocab_size;
  j["hidden_size"] = c.dim;
  j["moe_intermediate_size"] = c.moe_inter_dim;
  j["num_hidden_layers"] = c.n_layers;
  j["num_attention_heads"] = c.n_heads;
  j["num_key_value_heads"] = 1;
  j["head_dim"] = c.head_dim;
  j["qk_rope_head_dim"] = c.rope_head_dim;
  j["q_lora_rank"] = c.q_lora_rank;
  j["o_lora_rank"] = c.o_lora_rank;
  j["o_groups"] = c.o_groups;
  j["hidden_act"] = "silu";
  j["swiglu_limit"] = decimal(c.swiglu_limit);
  j["rms_norm_eps"] = decimal(c.norm_eps);
  j["attention_bias"] = false;
  j["attention_dropout"] = 0.0;
  j["initializer_range"] = 0.02;
  j["use_cache"] = true;
  j["tie_word_embeddings"] = false;
  j["max_position_embeddings"] = c.max_position_embeddings;
  j["rope_theta"] = number(c.rope_theta);
  j["rope_scaling"] = {{"type", "yarn"},
                       {"factor", number(c.rope_factor)},
                       {"beta_fast", number(c.beta_fast)},
                       {"beta_slow", number(c.beta_slow)},
                       {"original_max_position_embeddings", c.original_seq_len}};
  j["n_routed_experts"] = c.n_routed_experts;
  j["n_shared_experts"] = c.n_shared_experts;
  j["num_experts_per_tok"] = c.n_activated_experts;
  j["scoring_func"] = "sqrtsoftplus";
  j["topk_method"] = "noaux_tc";
  j["norm_topk_prob"] = true;
  if (c.gate_temp != 1.0f) j["gate_temp"] = decimal(c.gate_temp);
  j["routed_scaling_factor"] = decimal(c.route_scale);
  j["sliding_window"] = c.window_size;
  j["compress_ratios"] = c.compress_ratios;
  j["compress_rope_theta"] = number(c.compress_rope_theta);
  j["kv_source_layer_ids"] = c.kv_source_layers;
  j["index_source_layer_ids"] = c.index_source_layers;
  j["index_n_heads"] = c.index_n_heads;
  j["index_head_dim"] = c.index_head_dim;
  j["index_topk"] = c.index_topk;
  j["candidate_source_layer_id"] = c.candidate_source_layer >= 0 ? Json(c.candidate_source_layer) : Json(nullptr);
  j["candidate_topk_blocks"] = c.candidate_topk_blocks;
  j["candidate_block_size"] = c.candidate_block_size;
  j["hc_mult"] = c.hc_mult;
  j["hc_sinkhorn_iters"] = c.hc_sinkhorn_iters;
  j["hc_eps"] = decimal(c.hc_eps);
  j["engram_layer_ids"] = c.engram_layer_ids;
  j["engram_num_embeddings"] = c.engram_num_embeddings;
  j["engram_max_ngram_size"] = c.engram_max_ngram_size;
  j["engram_vocab_size"] = c.engram_vocab_size;
  j["engram_n_heads"] = c.engram_n_heads;
  j["engram_head_dim"] = c.engram_head_dim;
  j["engram_pad_token_id"] = c.engram_pad_id;
  j["engram_compressed_vocab_size"] = c.engram_compressed_vocab_size;
  j["num_nextn_predict_layers"] = c.n_mtp_layers;
  j["dspark_block_size"] = c.dspark_block_size;
  j["dspark_noise_token_id"] = c.dspark_noise_token_id;
  j["dspark_target_layer_ids"] = c.dspark_target_layer_ids;
  j["dspark_markov_rank"] = c.dspark_markov_rank;
  j["dspark_n_routed_experts"] = c.dspark_n_routed_experts;
  j["dspark_num_experts_per_tok"] = c.dspark_n_activated_experts;
  return j;
}

Json vision_config(const VisionConfig& v) {
  Json j;
  j["model_type"] = "deepseek_v41_vision";
  j["num_hidden_layers"] = v.n_layers;
  j["hidden_size"] = v.dim;
  j["num_attention_heads"] = v.n_heads;
  j["intermediate_size"] = v.inter_dim;
  j["patch_size"] = v.patch_size;
  j["rope_theta"] = number(v.rope_theta);
  j["downsample_ratio"] = v.downsample_ratio;
  j["max_image_tokens"] = v.max_n_token;
  j["min_pixels"] = v.min_pixels;
  j["max_wh_ratio"] = v.max_wh_ratio > 0 ? Json(v.max_wh_ratio) : Json(nullptr);
  return j;
}

}  // namespace

std::string config_json(const ModelConfig& c) {
  Json j;
  j["architectures"] = Json::array({"DeepseekV41ForCausalLM"});
  j["model_type"] = "deepseek_v41";
  j["dtype"] = "bfloat16";
  j["transformers_version"] = "5.6.0";
  j["bos_token_id"] = c.bos_token_id;
  j["eos_token_id"] = c.eos_token_id;
  j["pad_token_id"] = c.pad_token_id;
  if (c.image_token_id >= 0) j["image_token_id"] = c.image_token_id;
  j["quantization_config"] = {{"quant_method", "fp8"},
                              {"activation_scheme", "dynamic"},
                              {"weight_block_size", {32, 32}},
                              {"scale_fmt", "ue8m0"},
                              {"expert_dtype", "fp4"}};
  j["text_config"] = text_config(c);
  j["vision_config"] = c.has_vision ? vision_config(c.vision) : Json(nullptr);
  return j.dump(2) + "\n";
}

}  // namespace mdi
