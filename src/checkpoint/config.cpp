#include "checkpoint/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

#include "checkpoint/config_fields.h"
#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/printable.h"

namespace mdi {
namespace {

using nlohmann::json;

std::string found_text(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 8) return "a list of " + std::to_string(value.size());
  return printable(value.dump(), 80);
}

std::string bound_text(double bound, bool integer) {
  if (integer) return std::to_string(static_cast<int64_t>(bound));
  return json(bound).dump();
}

// One JSON object of the file with the path of its keys, for messages.
struct Fields {
  const json* object;
  std::string prefix;  // "text_config."
  std::string_view where;

  [[noreturn]] void fail(std::string_view key, const std::string& message) const {
    throw Error(where, "key '" + prefix + std::string(key) + "' " + message);
  }
  [[noreturn]] void fail(std::string_view key, const std::string& expected, const json& found) const {
    throw Error(where,
                "key '" + prefix + std::string(key) + "': expected " + expected + ", found " + found_text(found));
  }
  const json* find(std::string_view key) const {
    const auto at = object->find(key);
    return at == object->end() ? nullptr : &*at;
  }
  const json& at(std::string_view key) const {
    const json* value = find(key);
    if (value == nullptr) fail(key, "is missing");
    return *value;
  }
  Fields inside(std::string_view key) const {
    const json& value = at(key);
    if (!value.is_object()) fail(key, "an object", value);
    return {&value, prefix + std::string(key) + ".", where};
  }

  // The value of `key` must be `expected`: the engine implements nothing else.
  void require(std::string_view key, const json& expected) const {
    // As texts, so that 32.0 is not 32.
    if (at(key).dump() != expected.dump()) fail(key, found_text(expected), at(key));
  }
  void require_if_present(std::string_view key, const json& expected) const {
    if (find(key) != nullptr) require(key, expected);
  }

  template <class T>
  T number(const std::string& key, const json& value, double low, double high) const {
    constexpr bool kInteger = std::is_integral_v<T>;
    const std::string range = (kInteger ? "an integer from " : "a number from ") + bound_text(low, kInteger) + " to " +
                              bound_text(high, kInteger);
    if (kInteger ? !value.is_number_integer() : !value.is_number()) fail(key, range, value);
    const double rounded = value.get<double>();  // exact where it matters: no bound is beyond 2^53
    if (!(rounded >= low && rounded <= high)) fail(key, range, value);
    return value.get<T>();
  }

  template <class T>
  void read(std::string_view key, double low, double high, T& out) const {
    out = number<T>(std::string(key), at(key), low, high);
  }
  template <class T>
  void read(std::string_view key, double low, double high, std::vector<T>& out) const {
    const json& list = at(key);
    if (!list.is_array()) fail(key, "a list of integers", list);
    out.clear();
    for (const json& item : list) {
      out.push_back(number<T>(std::string(key) + "[" + std::to_string(out.size()) + "]", item, low, high));
    }
  }

  template <class S>
  void read(std::string_view key, const ConfigField<S>& field, S& out) const {
    std::visit([&](auto member) { read(key, field.low, field.high, out.*member); }, field.member);
  }
};

// A file that says a thing under both of its names says it twice; which one holds is not ours to guess.
void refuse_other_name(const Fields& fields, std::string_view name, std::string_view other) {
  if (name != other && fields.find(other) != nullptr) {
    fields.fail(other, "is the name of '" + std::string(name) + "' in the other form of the file; expected one form");
  }
}

void read_candidate_source(const Fields& fields, std::string_view key, ModelConfig& config) {
  const json* value = fields.find(key);
  config.candidate_source_layer = -1;
  if (value == nullptr || value->is_null()) return;
  config.candidate_source_layer = fields.number<int32_t>(std::string(key), *value, -1, 1024);
}

// What has one allowed value in both forms, and may be absent.
void check_gate(const Fields& fields) {
  fields.require_if_present("norm_topk_prob", true);
  const json* temperature = fields.find("gate_temp");
  if (temperature != nullptr && (!temperature->is_number() || temperature->get<double>() != 1.0)) {
    fields.fail("gate_temp", "1.0", *temperature);
  }
}

void read_max_wh_ratio(const Fields& fields, std::string_view key, const json& value, VisionConfig& vision) {
  if (!value.is_null()) vision.max_wh_ratio = fields.number<double>(std::string(key), value, 1e-6, 1e6);
}

void read_vision_nested(const Fields& top, ModelConfig& config) {
  const json* section = top.find("vision_config");
  if (section == nullptr || section->is_null()) return;
  const Fields fields = top.inside("vision_config");
  fields.require_if_present("model_type", "deepseek_v41_vision");
  for (const auto& field : vision_fields()) {
    refuse_other_name(fields, field.nested, field.flat);
    fields.read(field.nested, field, config.vision);
  }
  read_max_wh_ratio(fields, "max_wh_ratio", fields.at("max_wh_ratio"), config.vision);
  config.has_vision = true;
  top.read("image_token_id", 0, config.vocab_size - 1, config.image_token_id);
}

void check_rope_scaling(const Fields& rope) {
  for (const auto& [key, value] : rope.object->items()) {
    static constexpr std::string_view kKnown[] = {"type",      "rope_type", "factor",
                                                  "beta_fast", "beta_slow", "original_max_position_embeddings"};
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      rope.fail(printable(key), "is not a setting that this engine implements");
    }
  }
  rope.require_if_present("type", "yarn");
  rope.require_if_present("rope_type", "yarn");
  if (rope.find("type") == nullptr && rope.find("rope_type") == nullptr) rope.fail("rope_type", "is missing");
}

void check_architectures(const Fields& top) {
  const json* names = top.find("architectures");
  if (names == nullptr) return;
  if (*names != json::array({"DeepseekV41ForCausalLM"})) {
    top.fail("architectures", R"(["DeepseekV41ForCausalLM"])", *names);
  }
}

ModelConfig read_nested(const Fields& top) {
  check_architectures(top);
  top.require("model_type", "deepseek_v41");
  top.require_if_present("dtype", "bfloat16");
  const Fields quantization = top.inside("quantization_config");
  quantization.require("quant_method", "fp8");
  quantization.require("activation_scheme", "dynamic");
  quantization.require("weight_block_size", json::array({32, 32}));
  quantization.require("scale_fmt", "ue8m0");
  quantization.require("expert_dtype", "fp4");

  const Fields text = top.inside("text_config");
  text.require_if_present("model_type", "deepseek_v41_text");
  text.require("num_key_value_heads", 1);
  text.require("hidden_act", "silu");
  text.require("attention_bias", false);
  text.require("tie_word_embeddings", false);
  text.require("scoring_func", "sqrtsoftplus");
  text.require("topk_method", "noaux_tc");
  check_gate(text);
  const Fields rope = text.inside("rope_scaling");
  check_rope_scaling(rope);

  ModelConfig config;
  read_candidate_source(text, "candidate_source_layer_id", config);
  for (const auto& field : model_fields()) {
    const Fields& fields = field.place == KeyPlace::kTop ? top : field.place == KeyPlace::kText ? text : rope;
    refuse_other_name(fields, field.nested, field.flat);
    if (field.place != KeyPlace::kTop && top.find(field.nested) != nullptr) {
      top.fail(field.nested, "is expected inside '" + fields.prefix.substr(0, fields.prefix.size() - 1) + "'");
    }
    if (group_applies(field.group, config)) fields.read(field.nested, field, config);
  }
  read_vision_nested(top, config);
  return config;
}

void read_vision_flat(const Fields& fields, ModelConfig& config) {
  const json* layers = fields.find("vision_n_layers");
  const bool none = layers == nullptr || layers->is_null() || *layers == 0;
  for (const auto& field : vision_fields()) {
    if (!none) fields.read(field.flat, field, config.vision);
    if (layers == nullptr && fields.find(field.flat) != nullptr) fields.at("vision_n_layers");
  }
  if (none) return;
  if (const json* ratio = fields.find("vision_max_wh_ratio")) {
    read_max_wh_ratio(fields, "vision_max_wh_ratio", *ratio, config.vision);
  }
  config.has_vision = true;
  // The flat form leaves token ids to the tokenizer; only the released vocabulary has an id that is known from here.
  if (fields.find("image_token_id") == nullptr && config.vocab_size == 129280) {
    config.image_token_id = 129264;
  } else {
    fields.read("image_token_id", 0, config.vocab_size - 1, config.image_token_id);
  }
}

ModelConfig read_flat(const Fields& fields) {
  fields.require("dtype", "fp8");
  fields.require("expert_dtype", "fp4");
  fields.require("score_func", "sqrtsoftplus");
  fields.require_if_present("scale_fmt", "ue8m0");
  fields.require_if_present("weight_block_size", json::array({32, 32}));
  check_gate(fields);
  ModelConfig config;
  read_candidate_source(fields, "candidate_source_layer", config);
  for (const auto& field : model_fields()) {
    refuse_other_name(fields, field.flat, field.nested);
    const bool optional = field.group == KeyGroup::kTokenIds || field.group == KeyGroup::kNested;
    if (optional && fields.find(field.flat) == nullptr) continue;
    if (group_applies(field.group, config)) fields.read(field.flat, field, config);
  }
  if (fields.find("max_position_embeddings") == nullptr) {
    const double reach = static_cast<double>(config.original_seq_len) * config.rope_factor;
    config.max_position_embeddings = static_cast<int64_t>(std::min(reach, 0x1p30));
  }
  read_vision_flat(fields, config);
  return config;
}

}  // namespace

ModelConfig parse_config(std::string_view text, std::string_view where) {
  const json root = parse_json(text, where, {.max_bytes = size_t{1} << 20, .max_depth = 16});
  if (!root.is_object()) throw Error(where, "expected a JSON object, found " + found_text(root));
  const Fields top{&root, "", where};
  const bool nested = top.find("text_config") != nullptr;
  if (!nested && top.find("dim") == nullptr) {
    throw Error(where, "key 'text_config' is missing (and so is 'dim' of the flat form)");
  }
  ModelConfig config = nested ? read_nested(top) : read_flat(top);
  check_config(config, nested ? ConfigForm::kNested : ConfigForm::kFlat, where);
  return config;
}

ModelConfig load_config(const std::filesystem::path& dir_or_file) {
  std::error_code unreadable;  // is told by the mapping, with the file's name
  const bool folder = std::filesystem::is_directory(dir_or_file, unreadable);
  const MappedFile file(folder ? dir_or_file / "config.json" : dir_or_file);
  return parse_config(file.text(), printable(file.path().string(), 400));
}

}  // namespace mdi
