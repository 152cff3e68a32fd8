#include "checkpoint/config.h"

#include <algorithm>

#include "checkpoint/engram_primes.h"
#include "support.h"

namespace mdi {
namespace {

using test::Json;

Json golden_json(const char* name) { return Json::parse(test::read_file(test::golden(name) / "config.json")); }
Json data_json(const char* name) { return Json::parse(test::read_file(test::data_dir() / "config" / name)); }

ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }

TEST(Config, ReadsTheReleasedForm) {
  const ModelConfig c = load_config(test::golden("tiny-text"));
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_EQ(c.dim, 128);
  EXPECT_EQ(c.rope_head_dim, 32);
  EXPECT_EQ(c.norm_eps, 1e-20f);
  EXPECT_EQ(c.swiglu_limit, 10.0f);
  EXPECT_EQ(c.gate_temp, 1.0f);
  EXPECT_EQ(c.route_scale, 1.5f);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_EQ(c.rope_factor, 16.0);
  EXPECT_EQ(c.original_seq_len, 64);
  EXPECT_EQ(c.max_position_embeddings, 256);
  EXPECT_EQ(c.compress_ratios, (std::vector<int32_t>{0, 0, 2, 2, 2, 1, 1, 1, 0, 0}));
  EXPECT_EQ(c.candidate_source_layer, 5);
  EXPECT_EQ(c.engram_num_embeddings, (std::vector<int64_t>{3144, 3424}));
  EXPECT_EQ(c.engram_columns(), 6);
  EXPECT_EQ(c.n_mtp_layers, 2);
  EXPECT_EQ(c.dspark_n_activated_experts, 2);
  EXPECT_FALSE(c.has_vision);
  EXPECT_EQ(c.image_token_id, -1);
}

TEST(Config, ReadsVision) {
  const ModelConfig c = load_config(test::golden("tiny-vision") / "config.json");
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(c.image_token_id, 251);
  EXPECT_EQ(c.vision.n_layers, 2);
  EXPECT_EQ(c.vision.max_n_token, 20);
  EXPECT_EQ(c.vision.min_pixels, 4900);
  EXPECT_EQ(c.vision.max_wh_ratio, 0.0);
  Json json = golden_json("tiny-vision");
  json["vision_config"]["max_wh_ratio"] = 4.5;
  EXPECT_EQ(parse(json).vision.max_wh_ratio, 4.5);
  json.erase("vision_config");
  EXPECT_FALSE(parse(json).has_vision);
}

TEST(Config, ReadsTheFlatForm) {
  const struct {
    const char *flat, *nested;
  } pairs[] = {{"tiny_text_flat.json", "golden/tiny-text/config.json"},
               {"tiny_vision_flat.json", "golden/tiny-vision/config.json"},
               {"released_flat.json", "config/released.json"}};
  for (const auto& pair : pairs) {
    const ModelConfig flat = load_config(test::data_dir() / "config" / pair.flat);
    const ModelConfig nested = load_config(test::data_dir() / pair.nested);
    EXPECT_EQ(flat.vocab_size, nested.vocab_size);
    EXPECT_EQ(flat.norm_eps, nested.norm_eps);
    EXPECT_EQ(flat.beta_fast, nested.beta_fast);
    EXPECT_EQ(flat.compress_ratios, nested.compress_ratios);
    EXPECT_EQ(flat.candidate_source_layer, nested.candidate_source_layer);
    EXPECT_EQ(flat.engram_pad_id, nested.engram_pad_id);
    EXPECT_EQ(flat.dspark_target_layer_ids, nested.dspark_target_layer_ids);
    EXPECT_EQ(flat.eos_token_id, nested.eos_token_id);
    EXPECT_EQ(flat.image_token_id, nested.image_token_id);
    EXPECT_EQ(flat.has_vision, nested.has_vision);
    EXPECT_EQ(flat.vision.min_pixels, nested.vision.min_pixels);
  }
  // Without a limit of its own the flat form reaches as far as its rope scaling.
  EXPECT_EQ(load_config(test::data_dir() / "config" / "released_flat.json").max_position_embeddings, 1048576);
}

TEST(Config, AnswersTheSchedule) {
  const ModelConfig c = load_config(test::data_dir() / "config" / "released.json");
  const auto sources = [&](int layer) { return std::pair(c.kv_source_of(layer), c.index_source_of(layer)); };
  EXPECT_EQ(sources(0), std::pair(-1, -1));
  EXPECT_EQ(sources(2), std::pair(2, 2));
  EXPECT_EQ(sources(7), std::pair(2, 2));
  EXPECT_EQ(sources(19), std::pair(14, 14));
  EXPECT_EQ(sources(20), std::pair(20, 20));
  EXPECT_EQ(sources(24), std::pair(20, 24));
  EXPECT_EQ(sources(39), std::pair(20, 36));
  EXPECT_TRUE(c.is_kv_source(14));
  EXPECT_FALSE(c.is_kv_source(24));
  EXPECT_TRUE(c.is_index_source(24));
  EXPECT_FALSE(c.is_index_source(25));
  EXPECT_EQ(c.engram_index(1), 0);
  EXPECT_EQ(c.engram_index(14), 1);
  EXPECT_EQ(c.engram_index(2), -1);
  EXPECT_EQ(c.engram_columns(), 24);
}

// Layers without compressed rows may stand between a source and those that read from it.
TEST(Config, AllowsOtherSchedules) {
  Json json = golden_json("tiny-text");
  Json& text = json["text_config"];
  text["compress_ratios"] = {1, 0, 1, 2, 0, 2, 2, 0, 0, 0};
  text["kv_source_layer_ids"] = {0, 3};
  text["index_source_layer_ids"] = {0, 2, 3, 6};
  for (const Json& none : {Json(nullptr), Json(-1)}) {
    text["candidate_source_layer_id"] = none;
    const ModelConfig c = parse(json);
    EXPECT_EQ(c.candidate_source_layer, -1);
    EXPECT_EQ(c.kv_source_of(2), 0);
    EXPECT_EQ(c.index_source_of(2), 2);
    EXPECT_EQ(c.kv_source_of(4), -1);
    EXPECT_EQ(c.kv_source_of(5), 3);
    EXPECT_EQ(c.index_source_of(6), 6);
  }
  text.erase("candidate_source_layer_id");
  text.erase("candidate_topk_blocks");
  EXPECT_EQ(parse(json).candidate_source_layer, -1);
}

TEST(Config, AcceptsBothSpellingsOfYarn) {
  Json json = golden_json("tiny-text");
  Json& rope = json["text_config"]["rope_scaling"];
  rope.erase("rope_type");
  rope["type"] = "yarn";
  EXPECT_EQ(parse(json).rope_factor, 16.0);
  rope["rope_type"] = "yarn";
  EXPECT_EQ(parse(json).rope_factor, 16.0);
}

TEST(Config, EveryKeyThatChangesTheAnswerMustBeThere) {
  const Json good = golden_json("tiny-vision");
  const std::vector<std::string> optional = {
      "/architectures",
      "/dtype",
      "/transformers_version",
      "/vision_config",
      "/text_config/model_type",
      "/text_config/attention_dropout",
      "/text_config/initializer_range",
      "/text_config/use_cache",
      "/text_config/norm_topk_prob",
      "/text_config/candidate_source_layer_id",
      "/vision_config/model_type",
  };
  int required = 0;
  const auto visit = [&](const std::string& section) {
    const Json& object = good[Json::json_pointer(section)];
    for (const auto& [key, value] : object.items()) {
      const std::string pointer = section + "/" + key;
      Json broken = good;
      broken[Json::json_pointer(section)].erase(key);
      const std::string error = test::error_of([&] { parse(broken); });
      if (std::find(optional.begin(), optional.end(), pointer) != optional.end()) {
        EXPECT_EQ(error, "(no error)") << pointer;
      } else {
        ++required;
        test::expect_message(error, {"config.json: ", key, "is missing"});
      }
    }
  };
  for (const char* section :
       {"", "/text_config", "/vision_config", "/quantization_config", "/text_config/rope_scaling"}) {
    visit(section);
  }
  EXPECT_GT(required, 60);

  const Json flat = data_json("released_flat.json");
  for (const auto& [key, value] : flat.items()) {
    if (key == "norm_topk_prob" || key == "candidate_source_layer" || key == "vision_max_wh_ratio") continue;
    Json broken = flat;
    broken.erase(key);
    test::expect_message(test::error_of([&] { parse(broken); }), {"config.json: ", key, "is missing"});
  }
}

struct BadValue {
  const char* pointer;
  Json value;
  std::vector<std::string> words;
};

TEST(Config, RefusesBadValues) {
  const BadValue cases[] = {
      // not the kind of value that it should be
      {"/text_config", 5, {"'text_config': expected an object, found 5"}},
      {"/text_config", nullptr, {"'text_config'", "null"}},
      {"/text_config/hidden_size", "128", {"'text_config.hidden_size': expected an integer", "found \"128\""}},
      {"/text_config/hidden_size", 128.5, {"text_config.hidden_size", "found 128.5"}},
      {"/text_config/hidden_size", 128.0, {"text_config.hidden_size", "found 128.0"}},
      {"/text_config/hidden_size", true, {"text_config.hidden_size", "found true"}},
      {"/text_config/hidden_size", nullptr, {"text_config.hidden_size", "found null"}},
      {"/text_config/hidden_size", Json::array({128}), {"text_config.hidden_size", "found [128]"}},
      {"/text_config/rope_theta", "1e4", {"text_config.rope_theta", "expected a number"}},
      {"/text_config/compress_ratios", 2, {"text_config.compress_ratios", "expected a list of integers, found 2"}},
      {"/text_config/compress_ratios/3", 2.0, {"text_config.compress_ratios[3]", "found 2.0"}},
      {"/text_config/compress_ratios/3", "2", {"text_config.compress_ratios[3]"}},
      {"/text_config/engram_layer_ids", nullptr, {"text_config.engram_layer_ids", "expected a list"}},
      {"/text_config/rope_scaling", nullptr, {"text_config.rope_scaling", "expected an object"}},
      {"/vision_config", "none", {"vision_config", "expected an object"}},
      // out of range
      {"/text_config/hidden_size", 0, {"text_config.hidden_size", "from 1 to", "found 0"}},
      {"/text_config/hidden_size", -128, {"text_config.hidden_size", "found -128"}},
      {"/text_config/hidden_size", 1000000000000000000, {"text_config.hidden_size", "found 1000000000000000000"}},
      {"/text_config/hidden_size", 18446744073709551615u, {"text_config.hidden_size"}},
      {"/text_config/num_hidden_layers", 100000, {"text_config.num_hidden_layers", "found 100000"}},
      {"/text_config/vocab_size", 0, {"text_config.vocab_size"}},
      {"/text_config/vocab_size", 2147483648, {"text_config.vocab_size"}},
      {"/text_config/n_routed_experts", 0, {"text_config.n_routed_experts"}},
      {"/text_config/rms_norm_eps", 0, {"text_config.rms_norm_eps"}},
      {"/text_config/rms_norm_eps", 1e-50, {"text_config.rms_norm_eps"}},
      {"/text_config/rms_norm_eps", -1e-6, {"text_config.rms_norm_eps"}},
      {"/text_config/swiglu_limit", 0, {"text_config.swiglu_limit"}},
      {"/text_config/swiglu_limit", 1e300, {"text_config.swiglu_limit"}},
      {"/text_config/rope_theta", -10000, {"text_config.rope_theta"}},
      {"/text_config/compress_rope_theta", 1, {"text_config.compress_rope_theta"}},
      {"/text_config/rope_scaling/factor", 0, {"text_config.rope_scaling.factor"}},
      {"/text_config/hc_mult", 9, {"text_config.hc_mult", "from 1 to 8"}},
      {"/text_config/hc_mult", 0, {"text_config.hc_mult"}},
      {"/text_config/hc_sinkhorn_iters", 0, {"text_config.hc_sinkhorn_iters"}},
      {"/text_config/sliding_window", 0, {"text_config.sliding_window"}},
      {"/text_config/index_topk", 0, {"text_config.index_topk"}},
      {"/text_config/candidate_block_size", 0, {"text_config.candidate_block_size"}},
      {"/text_config/engram_max_ngram_size", 1, {"text_config.engram_max_ngram_size"}},
      {"/text_config/engram_vocab_size", 1e18, {"text_config.engram_vocab_size"}},
      {"/text_config/engram_vocab_size", 1000000000000000000, {"text_config.engram_vocab_size"}},
      {"/text_config/num_nextn_predict_layers", -1, {"text_config.num_nextn_predict_layers"}},
      {"/text_config/max_position_embeddings", 0, {"text_config.max_position_embeddings"}},
      {"/bos_token_id", -1, {"'bos_token_id'"}},
      {"/vision_config/patch_size", 0, {"vision_config.patch_size"}},
      {"/vision_config/max_wh_ratio", 0, {"vision_config.max_wh_ratio"}},
      {"/vision_config/max_wh_ratio", -2.0, {"vision_config.max_wh_ratio"}},
      // what this engine does not implement
      {"/model_type", "deepseek_v3", {"model_type", "expected \"deepseek_v41\", found \"deepseek_v3\""}},
      {"/architectures", Json::array({"OtherModel"}), {"architectures", "OtherModel"}},
      {"/dtype", "float16", {"'dtype'", "bfloat16"}},
      {"/quantization_config/quant_method", "int8", {"quantization_config.quant_method"}},
      {"/quantization_config/activation_scheme", "static", {"quantization_config.activation_scheme"}},
      {"/quantization_config/weight_block_size", Json::array({128, 128}), {"weight_block_size", "[128,128]"}},
      {"/quantization_config/weight_block_size", Json::array({32.0, 32}), {"weight_block_size", "[32.0,32]"}},
      {"/quantization_config/scale_fmt", "float", {"quantization_config.scale_fmt"}},
      {"/quantization_config/expert_dtype", "fp8", {"quantization_config.expert_dtype"}},
      {"/text_config/num_key_value_heads", 8, {"text_config.num_key_value_heads", "expected 1, found 8"}},
      {"/text_config/n_shared_experts", 2, {"text_config.n_shared_experts"}},
      {"/text_config/hidden_act", "gelu", {"text_config.hidden_act"}},
      {"/text_config/attention_bias", true, {"text_config.attention_bias", "expected false, found true"}},
      {"/text_config/tie_word_embeddings", true, {"text_config.tie_word_embeddings"}},
      {"/text_config/scoring_func", "sigmoid", {"text_config.scoring_func"}},
      {"/text_config/topk_method", "greedy", {"text_config.topk_method"}},
      {"/text_config/norm_topk_prob", false, {"text_config.norm_topk_prob"}},
      {"/text_config/gate_temp", 0.5, {"text_config.gate_temp"}},
      {"/text_config/rope_scaling/rope_type", "linear", {"rope_scaling.rope_type", "yarn"}},
      {"/text_config/rope_scaling/type", "linear", {"rope_scaling.type", "yarn"}},
      {"/text_config/rope_scaling/mscale", 1.0, {"rope_scaling.mscale", "not a setting"}},
      // the same thing said under two names
      {"/text_config/dim", 128, {"text_config.dim", "hidden_size"}},
      {"/hidden_size", 64, {"'hidden_size'", "inside 'text_config'"}},
      // values that do not fit together
      {"/text_config/hidden_size", 120, {"text_config.hidden_size", "multiple of 32", "found 120"}},
      {"/text_config/moe_intermediate_size", 65, {"text_config.moe_intermediate_size", "multiple of 32"}},
      {"/text_config/q_lora_rank", 48, {"text_config.q_lora_rank", "multiple of 32"}},
      {"/text_config/o_lora_rank", 33, {"text_config.o_lora_rank", "multiple of 32"}},
      {"/text_config/head_dim", 40, {"text_config.head_dim", "multiple of 32"}},
      {"/text_config/qk_rope_head_dim", 31, {"text_config.qk_rope_head_dim", "multiple of 2"}},
      {"/text_config/qk_rope_head_dim", 128, {"text_config.qk_rope_head_dim", "at most text_config.head_dim = 64"}},
      {"/text_config/o_groups", 3, {"text_config.o_groups", "divisor of text_config.num_attention_heads = 8"}},
      {"/text_config/num_experts_per_tok", 7, {"text_config.num_experts_per_tok", "n_routed_experts = 6"}},
      {"/text_config/n_routed_experts", 65536, {"text_config.n_routed_experts", "tensors"}},
      {"/text_config/rope_scaling/beta_slow", 32, {"rope_scaling.beta_slow", "beta_fast"}},
      {"/text_config/index_head_dim", 48, {"text_config.index_head_dim", "multiple of 32"}},
      {"/eos_token_id", 256, {"'eos_token_id'", "vocab_size = 256"}},
      {"/image_token_id", 256, {"'image_token_id'", "found 256"}},
      {"/text_config/dspark_noise_token_id", 300, {"dspark_noise_token_id", "vocab_size"}},
      {"/text_config/engram_compressed_vocab_size", 257, {"engram_compressed_vocab_size", "vocab_size"}},
      {"/text_config/engram_head_dim", 16, {"engram_head_dim", "multiple of 32"}},
      {"/vision_config/num_attention_heads", 5, {"vision_config.hidden_size"}},
      {"/vision_config/num_attention_heads", 32, {"vision_config.hidden_size", "multiple of 4"}},
      // schedules
      {"/text_config/compress_ratios",
       {0, 2, 2, 1, 1},
       {"text_config.compress_ratios", "expected 6 entries", "found 5"}},
      {"/text_config/compress_ratios/2", 3, {"text_config.compress_ratios[2]", "from 0 to 2"}},
      {"/text_config/compress_ratios/2", -1, {"text_config.compress_ratios[2]"}},
      {"/text_config/compress_ratios/5", 1, {"text_config.compress_ratios[5]", "draft layer"}},
      {"/text_config/compress_ratios/0", 2, {"text_config.compress_ratios[0]", "found none"}},
      {"/text_config/compress_ratios/2", 1, {"text_config.compress_ratios[2]", "found layer 1 of ratio 2"}},
      {"/text_config/compress_ratios/1", 0, {"text_config.kv_source_layer_ids[0]", "ratio 0"}},
      {"/text_config/kv_source_layer_ids", {3, 1}, {"text_config.kv_source_layer_ids[1]", "ascending"}},
      {"/text_config/kv_source_layer_ids", {1, 1, 3}, {"text_config.kv_source_layer_ids[1]", "ascending"}},
      {"/text_config/kv_source_layer_ids", {1, 5}, {"text_config.kv_source_layer_ids[1]", "num_hidden_layers = 5"}},
      {"/text_config/kv_source_layer_ids", {1}, {"text_config.compress_ratios[3]", "ratio 2"}},
      {"/text_config/index_source_layer_ids", {1, 4}, {"kv_source_layer_ids[1]", "index_source_layer_ids"}},
      {"/text_config/index_source_layer_ids", {0, 1, 3}, {"index_source_layer_ids[0]", "ratio 0"}},
      {"/text_config/candidate_source_layer_id", 4, {"candidate_source_layer_id", "keys of its own"}},
      {"/text_config/candidate_source_layer_id", 77, {"candidate_source_layer_id", "found 77"}},
      {"/text_config/candidate_source_layer_id", -2, {"candidate_source_layer_id", "found -2"}},
      {"/text_config/candidate_source_layer_id", 1, {"candidate_source_layer_id", "layer 3"}},
      {"/text_config/candidate_source_layer_id", "3", {"candidate_source_layer_id"}},
      {"/text_config/engram_layer_ids", {5}, {"engram_layer_ids[0]", "num_hidden_layers"}},
      {"/text_config/engram_layer_ids", {1, 2}, {"engram_num_embeddings", "2 layers", "found 1"}},
      {"/text_config/engram_num_embeddings", {1917}, {"engram_num_embeddings[0]", "expected 1916", "found 1917"}},
      {"/text_config/engram_vocab_size", 308, {"engram_num_embeddings[0]"}},
      {"/text_config/dspark_target_layer_ids", {2, 3, 5}, {"dspark_target_layer_ids[2]"}},
      {"/text_config/dspark_target_layer_ids", {4, 3, 2}, {"dspark_target_layer_ids[1]", "ascending"}},
      {"/text_config/dspark_target_layer_ids", Json::array(), {"dspark_target_layer_ids", "at least one"}},
  };
  const Json good = golden_json("tiny-vision");
  parse(good);
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.pointer) + " = " + c.value.dump());
    Json broken = good;
    broken[Json::json_pointer(c.pointer)] = c.value;
    auto words = c.words;
    words.push_back("config.json: ");
    test::expect_message(test::error_of([&] { parse(broken); }), words);
  }
}

TEST(Config, RefusesTextsThatAreNotAConfig) {
  const std::string good = golden_json("tiny-text").dump();
  const struct {
    std::string text, words;
  } cases[] = {
      {"", "not valid JSON"},
      {"[]", "expected a JSON object, found []"},
      {"{}", "key 'text_config' is missing"},
      {good.substr(0, good.size() / 2), "not valid JSON"},
      {good + "}", "not valid JSON"},
      {"{\"vocab_size\":NaN," + good.substr(1), "not valid JSON"},
      {"{\"model_type\":\"deepseek_v41\"," + good.substr(1), "'model_type' appears twice"},
      {"{\"x\":" + std::string(100000, '['), "nested deeper"},
      {std::string(2 << 20, ' ') + good, "bytes, more than"},
  };
  for (const auto& c : cases) {
    test::expect_message(test::error_of([&] { parse_config(c.text, "config.json"); }), {"config.json: ", c.words});
  }
}

TEST(EngramPrimes, ReleasedStream) {  // spec engram.md section 2
  const auto primes = engram_primes(load_config(test::data_dir() / "config" / "released.json"));
  ASSERT_EQ(primes.size(), 2u);
  const std::vector<int64_t> first = {16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183};
  const std::vector<int64_t> last = {16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889};
  EXPECT_EQ(primes[0][0], first);
  EXPECT_EQ(primes[1][2], last);
  EXPECT_EQ(primes[1][0][0], 16000477);
}

TEST(EngramPrimes, GoldenStreams) {
  for (const char* name : {"tiny-text", "tiny-vision"}) {
    const Json map = Json::parse(test::read_file(test::golden(name) / "engram_token_map.json"));
    const auto expected = map["primes"].get<std::vector<std::vector<std::vector<int64_t>>>>();
    EXPECT_EQ(engram_primes(load_config(test::golden(name))), expected);
  }
}

TEST(EngramPrimes, FirstPrimesAndLongStreams) {
  ModelConfig config;
  config.engram_layer_ids = {0};
  config.engram_max_ngram_size = 2;
  config.engram_n_heads = 20000;
  config.engram_vocab_size = 2;
  const auto primes = engram_primes(config)[0][0];
  EXPECT_EQ(std::vector<int64_t>(primes.begin(), primes.begin() + 6), (std::vector<int64_t>{2, 3, 5, 7, 11, 13}));
  EXPECT_EQ(primes[9999], 104729);   // the 10,000th prime
  EXPECT_EQ(primes[19999], 224737);  // the 20,000th
}

}  // namespace
}  // namespace mdi
