#include <algorithm>
#include <cmath>
#include <numeric>

#include "checkpoint/config_fields.h"
#include "checkpoint/engram_primes.h"
#include "core/error.h"

namespace mdi {
namespace {

// Tensors that a checkpoint may have at most, some four times the released model's. Bounds what a config can make the
// inventory allocate.
constexpr int64_t kMaxTensors = 400'000;

std::string text(int64_t value) { return std::to_string(value); }

struct Checker {
  const ModelConfig& config;
  ConfigForm form;
  std::string_view where;

  [[noreturn]] void fail(std::string_view flat, const std::string& message) const {
    throw Error(where, "key '" + key_name(form, flat) + "': " + message);
  }
  [[noreturn]] void fail(std::string_view flat, size_t at, const std::string& message) const {
    throw Error(where, "key '" + key_name(form, flat) + "[" + std::to_string(at) + "]': " + message);
  }
  std::string named(std::string_view flat, int64_t value) const { return key_name(form, flat) + " = " + text(value); }

  void multiple(std::string_view flat, int64_t value, int64_t of, const char* why) const {
    if (value % of != 0) fail(flat, "expected a multiple of " + text(of) + " (" + why + "), found " + text(value));
  }
  void at_most(std::string_view flat, int64_t value, std::string_view limit_flat, int64_t limit) const {
    if (value > limit) fail(flat, "expected at most " + named(limit_flat, limit) + ", found " + text(value));
  }
  void below_vocab(std::string_view flat, int64_t value) const {
    if (value >= config.vocab_size) {
      fail(flat, "expected a token id below " + named("vocab_size", config.vocab_size) + ", found " + text(value));
    }
  }
  // Layer numbers: ascending, none twice, all in the backbone.
  void layers(std::string_view flat, const std::vector<int32_t>& ids) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= config.n_layers) {
        fail(flat, i, "expected a layer below " + named("n_layers", config.n_layers) + ", found " + text(ids[i]));
      }
      if (i > 0 && ids[i] <= ids[i - 1]) {
        fail(flat, i, "expected layers in ascending order, found " + text(ids[i]) + " behind " + text(ids[i - 1]));
      }
    }
  }

  // The struct may also have been filled by hand (presets, tests): ranges are checked here as well as at reading.
  template <class S>
  void range(const ConfigField<S>& field, const S& values) const {
    const auto one = [&](double value) {
      if (!(value >= field.low && value <= field.high)) {
        fail(field.flat, "value " + std::to_string(value) + " is not between " + std::to_string(field.low) + " and " +
                             std::to_string(field.high));
      }
    };
    std::visit(
        [&](auto member) {
          const auto& value = values.*member;
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>) {
            one(static_cast<double>(value));
          } else {
            for (const auto item : value) one(static_cast<double>(item));
          }
        },
        field.member);
  }
};

void check_ranges(const Checker& check) {
  const ModelConfig& c = check.config;
  for (const auto& field : model_fields()) {
    if (group_applies(field.group, c)) check.range(field, c);
  }
  if (!c.has_vision) return;
  for (const auto& field : vision_fields()) check.range(field, c.vision);
}

void check_sizes(const Checker& check) {
  const ModelConfig& c = check.config;
  constexpr const char* kBlocks = "columns are quantised in blocks of 32";
  check.multiple("dim", c.dim, 32, kBlocks);
  check.multiple("moe_inter_dim", c.moe_inter_dim, 32, kBlocks);
  check.multiple("q_lora_rank", c.q_lora_rank, 32, kBlocks);
  check.multiple("head_dim", c.head_dim, 32, kBlocks);
  check.multiple("rope_head_dim", c.rope_head_dim, 2, "rotation works on pairs");
  check.at_most("rope_head_dim", c.rope_head_dim, "head_dim", c.head_dim);
  if (c.n_heads % c.o_groups != 0) {
    check.fail("o_groups",
               "expected a divisor of " + check.named("n_heads", c.n_heads) + ", found " + text(c.o_groups));
  }
  if (int64_t{c.o_groups} * c.o_lora_rank % 32 != 0) {
    check.fail("o_lora_rank", "expected a multiple of 32 when multiplied by " + check.named("o_groups", c.o_groups) +
                                  " (" + kBlocks + "), found " + text(c.o_lora_rank));
  }
  check.at_most("n_activated_experts", c.n_activated_experts, "n_routed_experts", c.n_routed_experts);
  if (c.beta_slow >= c.beta_fast) {
    check.fail("beta_slow", "expected less than " + key_name(check.form, "beta_fast") + " = " +
                                std::to_string(c.beta_fast) + ", found " + std::to_string(c.beta_slow));
  }
  check.below_vocab("bos_token_id", c.bos_token_id);
  check.below_vocab("eos_token_id", c.eos_token_id);
  check.below_vocab("pad_token_id", c.pad_token_id);
}

void check_schedule(const Checker& check) {
  const ModelConfig& c = check.config;
  const size_t expected = static_cast<size_t>(c.n_layers) + static_cast<size_t>(c.n_mtp_layers);
  if (c.compress_ratios.size() != expected) {
    check.fail("compress_ratios", "expected " + std::to_string(expected) + " entries (" +
                                      check.named("n_layers", c.n_layers) + " and " +
                                      check.named("n_mtp_layers", c.n_mtp_layers) + "), found " +
                                      std::to_string(c.compress_ratios.size()));
  }
  const auto ratio = [&](int layer) { return c.compress_ratios[static_cast<size_t>(layer)]; };
  for (size_t i = static_cast<size_t>(c.n_layers); i < expected; ++i) {
    if (c.compress_ratios[i] != 0) {
      check.fail("compress_ratios", i, "expected 0 for a draft layer, found " + text(c.compress_ratios[i]));
    }
  }
  check.layers("kv_source_layers", c.kv_source_layers);
  check.layers("index_source_layers", c.index_source_layers);
  for (size_t i = 0; i < c.kv_source_layers.size(); ++i) {
    const int layer = c.kv_source_layers[i];
    if (ratio(layer) == 0) check.fail("kv_source_layers", i, "layer " + text(layer) + " has compression ratio 0");
    if (!c.is_index_source(layer)) {
      check.fail("kv_source_layers", i,
                 "layer " + text(layer) + " is not in " + key_name(check.form, "index_source_layers") +
                     ", so nothing would select from its rows");
    }
  }
  for (size_t i = 0; i < c.index_source_layers.size(); ++i) {
    const int layer = c.index_source_layers[i];
    if (ratio(layer) == 0) check.fail("index_source_layers", i, "layer " + text(layer) + " has compression ratio 0");
  }
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (ratio(layer) == 0) continue;
    const int source = c.kv_source_of(layer);
    if (source < 0 || ratio(source) != ratio(layer)) {
      const std::string found = source < 0 ? "none" : "layer " + text(source) + " of ratio " + text(ratio(source));
      check.fail("compress_ratios", static_cast<size_t>(layer),
                 "layer " + text(layer) + " of ratio " + text(ratio(layer)) + " expects the last of " +
                     key_name(check.form, "kv_source_layers") + " up to it to have that ratio, found " + found);
    }
  }
}

void check_index(const Checker& check) {
  const ModelConfig& c = check.config;
  if (!c.kv_source_layers.empty()) {
    check.multiple("index_head_dim", c.index_head_dim, 32, "index keys are quantised in blocks of 32");
    if (c.index_head_dim < c.rope_head_dim) {
      check.fail("index_head_dim", "expected at least " + check.named("rope_head_dim", c.rope_head_dim) + ", found " +
                                       text(c.index_head_dim));
    }
  }
  const int source = c.candidate_source_layer;
  if (source < 0) return;
  if (source >= c.n_layers || !c.is_kv_source(source)) {
    check.fail("candidate_source_layer", "expected a layer of " + key_name(check.form, "kv_source_layers") +
                                             ", which has index keys of its own, found " + text(source));
  }
  for (const int layer : c.index_source_layers) {
    if (layer > source && c.kv_source_of(layer) != source) {
      check.fail("candidate_source_layer", "layer " + text(layer) + " would be filtered by the candidates of layer " +
                                               text(source) + " but selects from the rows of layer " +
                                               text(c.kv_source_of(layer)));
    }
  }
}

void check_engram(const Checker& check) {
  const ModelConfig& c = check.config;
  check.layers("engram_layer_ids", c.engram_layer_ids);
  const size_t count = c.engram_layer_ids.size();
  if (count == 0) return;
  check.multiple("engram_head_dim", c.engram_head_dim, 32, "rows are quantised in blocks of 32");
  check.below_vocab("engram_pad_id", c.engram_pad_id);
  check.at_most("engram_compressed_vocab_size", c.engram_compressed_vocab_size, "vocab_size", c.vocab_size);
  if (c.engram_num_embeddings.size() != count) {
    check.fail("engram_num_embeddings", "expected one entry for each of the " + std::to_string(count) + " layers of " +
                                            key_name(check.form, "engram_layer_ids") + ", found " +
                                            std::to_string(c.engram_num_embeddings.size()));
  }
  const int64_t columns = static_cast<int64_t>(count) * c.engram_columns();
  if (columns > 65536) {
    check.fail("engram_n_heads", "expected at most 65536 table columns over all layers, found " + text(columns));
  }
  const auto primes = engram_primes(c);
  for (size_t i = 0; i < count; ++i) {
    int64_t rows = 0;
    for (const auto& heads : primes[i]) rows = std::accumulate(heads.begin(), heads.end(), rows);
    if (rows != c.engram_num_embeddings[i]) {
      check.fail(
          "engram_num_embeddings", i,
          "expected " + text(rows) + ", the sum of the layer's hash moduli, found " + text(c.engram_num_embeddings[i]));
    }
  }
}

void check_draft(const Checker& check) {
  const ModelConfig& c = check.config;
  if (c.n_mtp_layers == 0) return;
  check.layers("dspark_target_layer_ids", c.dspark_target_layer_ids);
  if (c.dspark_target_layer_ids.empty())
    check.fail("dspark_target_layer_ids", "expected at least one layer, found none");
  check.below_vocab("dspark_noise_token_id", c.dspark_noise_token_id);
  check.at_most("dspark_n_activated_experts", c.dspark_n_activated_experts, "dspark_n_routed_experts",
                c.dspark_n_routed_experts);
}

void check_vision(const Checker& check) {
  const ModelConfig& c = check.config;
  if (!c.has_vision) return;
  check.below_vocab("image_token_id", c.image_token_id);
  const int per_head = c.vision.dim / c.vision.n_heads;
  if (c.vision.dim % c.vision.n_heads != 0 || per_head % 4 != 0) {
    check.fail("vision_dim", "expected a multiple of 4 for each of " + check.named("vision_n_heads", c.vision.n_heads) +
                                 " heads, found " + text(c.vision.dim));
  }
}

void check_tensor_count(const Checker& check) {
  const ModelConfig& c = check.config;
  const int64_t count = int64_t{6} * c.n_layers * c.n_routed_experts +
                        (c.n_mtp_layers == 0 ? 0 : int64_t{6} * c.n_mtp_layers * c.dspark_n_routed_experts);
  if (count > kMaxTensors) {
    check.fail("n_routed_experts", "the experts of all layers would be " + text(count) +
                                       " tensors, more than the limit of " + text(kMaxTensors));
  }
}

}  // namespace

void check_config(const ModelConfig& config, ConfigForm form, std::string_view where) {
  const Checker check{config, form, where};
  check_ranges(check);
  check_sizes(check);
  check_schedule(check);
  check_index(check);
  check_engram(check);
  check_draft(check);
  check_vision(check);
  check_tensor_count(check);
}

}  // namespace mdi
