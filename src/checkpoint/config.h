// config.json, in the released nesting or the flat form of the reference, as one plain struct (spec model.md 1).
//
// Field names are the flat (reference) names. Nothing has a silent default: a key that changes the answer and is
// missing is an error that names it, and so is a value that the architecture does not allow.
// Absent may be: gate_temp (1), norm_topk_prob (true), the candidate source (none), vision (none). The flat form has no
// keys for token ids and the position limit: absent, they are those of the struct, the released image token if the
// vocabulary is the released one, and original_seq_len * rope_factor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace mdi {

struct VisionConfig {
  int32_t n_layers = 0, dim = 0, n_heads = 0, inter_dim = 0;
  int32_t patch_size = 14, downsample_ratio = 3, max_n_token = 0;
  int64_t min_pixels = 0;
  double max_wh_ratio = 0;  // 0: no cap
  double rope_theta = 10000;
};

struct ModelConfig {
  // -- sizes
  int32_t vocab_size = 0, dim = 0, moe_inter_dim = 0, n_layers = 0, n_heads = 0, head_dim = 0, rope_head_dim = 0;
  int32_t q_lora_rank = 0, o_lora_rank = 0, o_groups = 0;
  int32_t bos_token_id = 0, eos_token_id = 1, pad_token_id = 2;
  int32_t image_token_id = -1;  // -1: a text-only model
  float norm_eps = 0, swiglu_limit = 0;
  int64_t max_position_embeddings = 0;
  // -- rope
  double rope_theta = 0, compress_rope_theta = 0, rope_factor = 0, beta_fast = 0, beta_slow = 0;
  int64_t original_seq_len = 0;
  // -- experts
  int32_t n_routed_experts = 0, n_shared_experts = 0, n_activated_experts = 0;
  float route_scale = 0, gate_temp = 1;
  // -- attention schedule; compress_ratios has n_layers + n_mtp_layers entries of 0, 1 or 2
  int32_t window_size = 0;
  std::vector<int32_t> compress_ratios, kv_source_layers, index_source_layers;
  int32_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;
  int32_t candidate_source_layer = -1, candidate_topk_blocks = 0, candidate_block_size = 0;  // -1: no candidates
  // -- hyper-connections
  int32_t hc_mult = 0, hc_sinkhorn_iters = 0;
  float hc_eps = 0;
  // -- engram; n-grams of 2..engram_max_ngram_size
  std::vector<int32_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // table rows, one per engram layer
  int32_t engram_max_ngram_size = 0, engram_n_heads = 0, engram_head_dim = 0;
  int64_t engram_vocab_size = 0;
  int32_t engram_pad_id = 2, engram_compressed_vocab_size = 0;
  // -- draft layers; n_mtp_layers 0: none, and the dspark fields mean nothing
  int32_t n_mtp_layers = 0, dspark_block_size = 0, dspark_noise_token_id = 0, dspark_markov_rank = 0;
  int32_t dspark_n_routed_experts = 0, dspark_n_activated_experts = 0;
  std::vector<int32_t> dspark_target_layer_ids;
  // -- vision
  bool has_vision = false;
  VisionConfig vision;

  // What follows from the schedule. `layer` is 0..n_layers-1.
  bool is_kv_source(int layer) const;
  bool is_index_source(int layer) const;
  int kv_source_of(int layer) const;     // the layer whose compressed rows `layer` reads; -1 at ratio 0
  int index_source_of(int layer) const;  // the layer whose selection `layer` uses; -1 at ratio 0
  int engram_index(int layer) const;     // position of `layer` in engram_layer_ids; -1 if none
  int engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
};

// Reads and checks DIR/config.json (or the file itself). Throws mdi::Error naming file and key.
ModelConfig load_config(const std::filesystem::path& dir_or_file);
// The same from a text; `where` names it in errors.
ModelConfig parse_config(std::string_view text, std::string_view where);

}  // namespace mdi
