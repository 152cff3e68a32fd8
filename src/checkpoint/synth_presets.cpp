#include "checkpoint/synth_presets.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "checkpoint/engram_primes.h"
#include "core/error.h"

namespace mdi {

namespace {

// Rows of a table: one block of rows for each column, as many as its prime.
void fit_engram_rows(ModelConfig& c) {
  c.engram_num_embeddings.clear();
  if (c.engram_layer_ids.empty()) return;
  for (const auto& layer : engram_primes(c)) {
    int64_t rows = 0;
    for (const auto& ngram : layer) rows = std::accumulate(ngram.begin(), ngram.end(), rows);
    c.engram_num_embeddings.push_back(rows);
  }
}

// What every preset shares.
ModelConfig common() {
  ModelConfig c;
  c.bos_token_id = 0;
  c.eos_token_id = 1;
  c.pad_token_id = 2;
  c.engram_pad_id = 2;
  c.norm_eps = 1e-20f;
  c.swiglu_limit = 10.0f;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.rope_factor = 16;
  c.beta_fast = 32;
  c.beta_slow = 1;
  c.n_shared_experts = 1;
  c.route_scale = 1.5f;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6f;
  c.engram_max_ngram_size = 4;
  c.dspark_block_size = 5;
  return c;
}

ModelConfig released() {
  ModelConfig c = common();
  c.vocab_size = 129280;
  c.dim = 5120;
  c.moe_inter_dim = 2304;
  c.n_layers = 40;
  c.n_heads = 64;
  c.head_dim = 512;
  c.rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_lora_rank = 1024;
  c.o_groups = 8;
  c.image_token_id = 129264;
  c.max_position_embeddings = 1048576;
  c.original_seq_len = 65536;
  c.n_routed_experts = 384;
  c.n_activated_experts = 6;
  c.window_size = 128;
  c.compress_ratios.assign(2, 0);
  c.compress_ratios.insert(c.compress_ratios.end(), 18, 2);
  c.compress_ratios.insert(c.compress_ratios.end(), 20, 1);
  c.compress_ratios.insert(c.compress_ratios.end(), 3, 0);
  c.kv_source_layers = {2, 8, 14, 20};
  c.index_source_layers = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_source_layer = 20;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;
  c.engram_layer_ids = {1, 14};
  c.engram_num_embeddings = {384006168, 384016682};
  c.engram_vocab_size = 16000000;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.engram_compressed_vocab_size = 99092;
  c.n_mtp_layers = 3;
  c.dspark_noise_token_id = 128799;
  c.dspark_target_layer_ids = {37, 38, 39};
  c.dspark_markov_rank = 256;
  c.dspark_n_routed_experts = 128;
  c.dspark_n_activated_experts = 3;
  c.has_vision = true;
  c.vision.n_layers = 32;
  c.vision.dim = 1024;
  c.vision.n_heads = 16;
  c.vision.inter_dim = 2816;
  c.vision.patch_size = 14;
  c.vision.downsample_ratio = 3;
  c.vision.max_n_token = 1024;
  c.vision.min_pixels = 295936;
  return c;
}

// One layer of every kind at the released widths: 0 window only, 1 full at ratio 2 with engram, 2 reuse, 3 full at
// ratio 1 and candidate source, 4 reuse, 5 reindex within the candidates.
ModelConfig slice() {
  ModelConfig c = released();
  c.n_layers = 6;
  c.n_mtp_layers = 1;
  c.compress_ratios = {0, 2, 2, 1, 1, 1, 0};
  c.kv_source_layers = {1, 3};
  c.index_source_layers = {1, 3, 5};
  c.candidate_source_layer = 3;
  c.engram_layer_ids = {1};
  c.engram_vocab_size = 20000;
  c.engram_compressed_vocab_size = 3200;
  c.vocab_size = 4096;
  c.dspark_noise_token_id = 4094;
  c.dspark_target_layer_ids = {3, 4, 5};
  c.n_routed_experts = 8;
  c.dspark_n_routed_experts = 8;
  c.image_token_id = -1;
  c.has_vision = false;
  c.vision = {};
  fit_engram_rows(c);
  return c;
}

ModelConfig tiny() {
  ModelConfig c = common();
  c.vocab_size = 512;
  c.dim = 128;
  c.moe_inter_dim = 64;
  c.n_layers = 8;
  c.n_heads = 8;
  c.head_dim = 64;
  c.rope_head_dim = 32;
  c.q_lora_rank = 64;
  c.o_lora_rank = 32;
  c.o_groups = 4;
  c.max_position_embeddings = 256;
  c.original_seq_len = 64;
  c.image_token_id = 509;
  c.n_routed_experts = 16;
  c.n_activated_experts = 3;
  c.window_size = 16;
  c.compress_ratios = {0, 0, 2, 2, 2, 1, 1, 1, 0, 0};
  c.kv_source_layers = {2, 4, 5};
  c.index_source_layers = {2, 4, 5, 7};
  c.index_n_heads = 8;
  c.index_head_dim = 64;
  c.index_topk = 16;
  c.candidate_source_layer = 5;
  c.candidate_topk_blocks = 6;
  c.candidate_block_size = 4;
  c.engram_layer_ids = {1, 4};
  c.engram_vocab_size = 500;
  c.engram_n_heads = 2;
  c.engram_head_dim = 32;
  c.engram_compressed_vocab_size = 300;
  c.n_mtp_layers = 2;
  c.dspark_noise_token_id = 510;
  c.dspark_target_layer_ids = {5, 6, 7};
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 8;
  c.dspark_n_activated_experts = 2;
  fit_engram_rows(c);
  return c;
}

ModelConfig tiny_vision() {
  ModelConfig c = tiny();
  c.vocab_size = 256;
  c.n_layers = 5;
  c.n_mtp_layers = 1;
  c.image_token_id = 251;
  c.n_routed_experts = 6;
  c.n_activated_experts = 2;
  c.compress_ratios = {0, 2, 2, 1, 1, 0};
  c.kv_source_layers = {1, 3};
  c.index_source_layers = {1, 3, 4};
  c.candidate_source_layer = 3;
  c.engram_layer_ids = {1};
  c.engram_vocab_size = 300;
  c.engram_compressed_vocab_size = 150;
  c.dspark_noise_token_id = 252;
  c.dspark_target_layer_ids = {2, 3, 4};
  c.dspark_n_routed_experts = 4;
  c.has_vision = true;
  c.vision.n_layers = 2;
  c.vision.dim = 64;
  c.vision.n_heads = 4;
  c.vision.inter_dim = 128;
  c.vision.max_n_token = 20;
  c.vision.min_pixels = 4900;
  fit_engram_rows(c);
  return c;
}

struct Preset {
  std::string_view name;
  ModelConfig (*make)();
};
constexpr Preset kPresets[] = {{"tiny", tiny}, {"tiny-vision", tiny_vision}, {"slice", slice}, {"released", released}};

template <class T>
T checked(const char* option, T value, T low, T high) {
  if (value < low || value > high) {
    throw Error(option,
                "expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " + std::to_string(value));
  }
  return value;
}

void set_layers(ModelConfig& c, int layers) {
  const auto n = static_cast<size_t>(layers);
  std::vector<int32_t> ratios(c.compress_ratios.begin(), c.compress_ratios.begin() + c.n_layers);
  ratios.resize(n, ratios.back());
  ratios.resize(n + static_cast<size_t>(c.n_mtp_layers), 0);
  c.compress_ratios = std::move(ratios);
  const auto outside = [layers](int layer) { return layer >= layers; };
  std::erase_if(c.kv_source_layers, outside);
  std::erase_if(c.index_source_layers, outside);
  std::erase_if(c.engram_layer_ids, outside);
  if (outside(c.candidate_source_layer)) c.candidate_source_layer = -1;
  // The drafts read the last layers.
  auto& targets = c.dspark_target_layer_ids;
  targets.resize(std::min(targets.size(), n));
  std::iota(targets.begin(), targets.end(), layers - static_cast<int>(targets.size()));
  c.n_layers = layers;
}

void set_vocab(ModelConfig& c, int vocab) {
  // The special ids keep their distance from the end, where the released vocabulary has them too.
  for (int32_t* id : {&c.image_token_id, &c.dspark_noise_token_id}) {
    if (*id >= 0) *id = std::max(c.pad_token_id + 1, vocab - (c.vocab_size - *id));
  }
  c.engram_compressed_vocab_size = std::min(c.engram_compressed_vocab_size, std::max(3, vocab * 3 / 4));
  c.vocab_size = vocab;
}

}  // namespace

std::vector<std::string_view> synth_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}

ModelConfig synth_preset(std::string_view name) {
  std::string known;
  for (const Preset& p : kPresets) {
    if (p.name == name) return p.make();
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw Error("--preset", "expected one of " + known + ", found '" + std::string(name) + "'");
}

void apply_overrides(ModelConfig& c, const ShapeOverrides& o) {
  if (o.layers) set_layers(c, checked("--layers", *o.layers, 1, 1024));
  if (o.draft_layers) {
    c.n_mtp_layers = checked("--draft-layers", *o.draft_layers, 0, 64);
    c.compress_ratios.resize(static_cast<size_t>(c.n_layers) + static_cast<size_t>(c.n_mtp_layers), 0);
  }
  if (o.experts) c.n_routed_experts = checked("--experts", *o.experts, c.n_activated_experts, 4096);
  if (o.draft_experts) {
    c.dspark_n_routed_experts = checked("--draft-experts", *o.draft_experts, c.dspark_n_activated_experts, 4096);
  }
  if (o.vocab) set_vocab(c, checked("--vocab", *o.vocab, 16, 1 << 20));
  if (o.engram_vocab) c.engram_vocab_size = checked<int64_t>("--engram-vocab", *o.engram_vocab, 3, 1 << 30);
  if (o.no_vision) {
    c.has_vision = false;
    c.vision = {};
  }
  if (o.layers || o.engram_vocab) fit_engram_rows(c);
}

}  // namespace mdi
