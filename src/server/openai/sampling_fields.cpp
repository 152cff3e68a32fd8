#include "server/openai/sampling_fields.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <random>
#include <set>

#include "core/printable.h"

namespace mdi {

namespace {

uint64_t random_seed() {
  static thread_local std::mt19937_64 source{(uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()};
  return source();
}

std::vector<LogitBias> read_bias(Fields& body, int32_t vocab) {
  constexpr size_t kMost = 1024;  // RequestLimits::max_logit_bias
  std::vector<LogitBias> biases;
  const OrderedJson* map = body.object("logit_bias");
  if (map == nullptr) return biases;
  if (map->size() > kMost) {
    throw invalid_param("logit_bias", "at most " + std::to_string(kMost) + " tokens", std::to_string(map->size()));
  }
  std::set<int32_t> named;
  for (const auto& [key, value] : map->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab) {
      throw invalid_param("logit_bias", "token ids of 0 to " + std::to_string(vocab - 1) + " as keys", key);
    }
    if (!named.insert(token).second) throw invalid_param("logit_bias", "each token once", key + " for the second time");
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      throw invalid_param("logit_bias." + key, "a number from -100 to 100", describe_value(value));
    }
    biases.push_back({.token = token, .bias = value.get<float>()});
  }
  return biases;
}

}  // namespace

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

void read_common(Fields& body, const Service& service, Generation& g) {
  if (const auto model = body.string("model", 1024)) service.check_model(*model);
  const RequestLimits limits;
  g.n = static_cast<int32_t>(body.integer("n", 1, limits.max_n).value_or(1));
  const auto seed = body.integer("seed", INT64_MIN, INT64_MAX);
  g.stop = body.strings("stop", static_cast<size_t>(limits.max_stop_strings),
                        static_cast<size_t>(limits.max_stop_string_bytes));
  SamplingParams& s = g.sampling;
  s.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
  s.temperature = static_cast<float>(body.number("temperature", 0, 2).value_or(service.options().temperature));
  g.draft = !seed || s.temperature == 0;
  s.top_p = static_cast<float>(body.number("top_p", 0, 1).value_or(service.options().top_p));
  // 0 is within the API's range; it means the most likely token, as the smallest number above it does.
  if (!(s.top_p > 0)) s.top_p = std::numeric_limits<float>::min();
  s.top_k = static_cast<int32_t>(body.integer("top_k", -1, INT32_MAX).value_or(0));
  if (s.top_k < 0) s.top_k = 0;  // -1 says "no limit" elsewhere
  s.min_p = static_cast<float>(body.number("min_p", 0, 1).value_or(0));
  s.presence_penalty = static_cast<float>(body.number("presence_penalty", -2, 2).value_or(0));
  s.frequency_penalty = static_cast<float>(body.number("frequency_penalty", -2, 2).value_or(0));
  s.repetition_penalty = static_cast<float>(body.number("repetition_penalty", 0.01, 10).value_or(1));
  s.logit_bias = read_bias(body, service.model().config().vocab_size);
  g.ignore_eos = body.boolean("ignore_eos").value_or(false);
  g.salt = body.string("cache_salt", 128).value_or("");
  // About the client and its bookkeeping: the answer is the same with and without them.
  body.ignore(
      {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
}

StreamSettings read_stream(Fields& body, bool chat) {
  StreamSettings s;
  s.stream = body.boolean("stream").value_or(false);
  if (const OrderedJson* options = body.object("stream_options")) {
    if (!s.stream) body.refuse("stream_options", "it only together with stream: true");
    Fields fields(*options, "stream_options");
    s.include_usage = fields.boolean("include_usage").value_or(false);
    if (chat) s.continuous_usage = fields.boolean("continuous_usage_stats").value_or(false);
    if (s.continuous_usage && !s.include_usage) {
      fields.refuse("continuous_usage_stats", "it only together with include_usage: true");
    }
    fields.ignore({"include_obfuscation"});
    fields.done();
  }
  return s;
}

namespace {

// response_format; the schema that the model is shown, or null.
const OrderedJson* read_response_format(const OrderedJson& value, GrammarSpec& grammar) {
  Fields format(value, "response_format");
  const auto type = format.word("type", {"text", "json_object", "json_schema"});
  if (!type) format.refuse("type", "\"text\", \"json_object\" or \"json_schema\"");
  const OrderedJson* shown = nullptr;
  if (*type == "json_object") grammar.kind = GrammarSpec::Kind::kJsonObject;
  if (*type == "json_schema") {
    const OrderedJson* wrapped = format.object("json_schema");
    if (wrapped == nullptr) format.refuse("json_schema", "an object with name and schema");
    Fields inner(*wrapped, "response_format.json_schema");
    const auto name = inner.string("name", 1024);
    if (!name || !is_name(*name)) inner.refuse("name", "1 to 64 letters, digits, _ or -");
    inner.string("description", 65536);
    grammar.strict = inner.boolean("strict").value_or(false);
    const OrderedJson* schema = inner.object("schema");
    if (schema == nullptr) inner.refuse("schema", "a JSON Schema");
    inner.done();
    grammar.kind = GrammarSpec::Kind::kJsonSchema;
    grammar.schema = python_json(*schema);
    shown = schema;
  }
  format.done();
  return shown;
}

}  // namespace

const OrderedJson* read_format(Fields& body, bool chat, GrammarSpec& grammar) {
  const OrderedJson* shown = nullptr;
  if (const OrderedJson* format = chat ? body.find("response_format") : nullptr) {
    shown = read_response_format(*format, grammar);
  }
  const auto only_one = [&](const char* name) {
    if (grammar.kind != GrammarSpec::Kind::kNone) {
      body.refuse(name, "only one of response_format, regex and choice");
    }
  };
  if (auto pattern = body.string("regex", 65536)) {
    only_one("regex");
    grammar.kind = GrammarSpec::Kind::kRegex;
    grammar.pattern = std::move(*pattern);
  }
  if (const OrderedJson* choices = body.list("choice", 1, 4096)) {
    only_one("choice");
    grammar.kind = GrammarSpec::Kind::kChoice;
    for (size_t i = 0; i < choices->size(); ++i) {
      const OrderedJson& choice = (*choices)[i];
      if (!choice.is_string()) {
        throw invalid_param("choice[" + std::to_string(i) + "]", "a string", describe_value(choice));
      }
      grammar.choices.push_back(choice.get<std::string>());
    }
  }
  return shown;
}

}  // namespace mdi
