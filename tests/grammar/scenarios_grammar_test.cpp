// What goes wrong with grammars, as stories: state that a rejected draft moves, the end of reasoning, and requests that
// would take unbounded time or memory.
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "walk.h"

namespace mdi {
namespace {

GrammarSpec pattern_spec(const std::string& pattern) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kRegex;
  spec.pattern = pattern;
  return spec;
}

struct Refusal {
  std::string what;  // empty: it was compiled
  double seconds;
};

// Of this thread, so that what else the machine does does not count.
double own_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Refusal compile(const GrammarSpec& spec) {
  const double start = own_seconds();
  std::string what;
  try {
    full_compiler().compile(spec);
  } catch (const Error& error) {
    what = error.what();
  }
  return {what, own_seconds() - start};
}

std::string many_properties(int count) {
  nlohmann::json properties = nlohmann::json::object();
  for (int i = 0; i < count; ++i) properties["property_" + std::to_string(i)] = {{"type", "string"}};
  return nlohmann::json{{"type", "object"}, {"properties", properties}}.dump();
}

// A grammar bomb is one error that names the limit, soon, and the next request is served.
TEST(ScenariosGrammar, BombsAreRefusedByName) {
  std::string deep, groups, doubling = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 200; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(200, '}');
  groups = std::string(5000, '(') + "a" + std::string(5000, ')');
  for (int i = 0; i < 60; ++i) {
    const std::string next = R"({"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    doubling += "\"d" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "]},";
  }
  doubling += R"("d60":{"type":"null"}}})";
  GrammarSpec tool;
  tool.tool_choice = GrammarSpec::ToolChoice::kRequired;
  tool.tools = {
      {"f",
       R"({"type":"object","properties":{"a":{"$ref":"#/$defs/d0"}},)" + doubling.substr(doubling.find("\"$defs\"")),
       true}};
  nlohmann::json words = nlohmann::json::array();
  for (int i = 0; i < 20'000; ++i) words.push_back(i * 7919);

  const std::pair<GrammarSpec, const char*> bombs[] = {
      {pattern_spec("a{1000000}"), "expected at most 128"},
      {pattern_spec("((a{100}){100}){100}"), "expected at most 2000 characters"},
      {pattern_spec("(((a|b)c{0,100}){0,100}){0,100}"), "expected at most 2000 characters"},
      {pattern_spec(groups), "groups inside one another: expected at most 32"},
      {schema_spec(R"({"type":"string","maxLength":1000000})"), "expected at most 10000"},
      {schema_spec(deep), "response_format"},
      {schema_spec(many_properties(10'000)), "bytes together"},
      {schema_spec(many_properties(4'500)), "not required: expected at most 200, found 4500"},
      {schema_spec(nlohmann::json{{"enum", words}}.dump()), "expected at most 100000 states"},
      {tool, "inside one another: expected at most 32"},
  };
  for (const auto& [spec, expected] : bombs) {
    const Refusal refusal = compile(spec);
    EXPECT_NE(refusal.what.find(expected), std::string::npos) << expected << ": " << refusal.what;
    EXPECT_LT(refusal.seconds, 1.0 * kPace) << expected;
  }
  EXPECT_EQ(compile(schema_spec(doubling)).what, "");  // as JSON each definition is written once
  EXPECT_EQ(compile(pattern_spec("a{3}")).what, "");
}

// What is asked for again comes from the cache, whose size is bounded.
TEST(ScenariosGrammar, TheCacheIsBounded) {
  GrammarLimits limits = paced_limits();
  limits.max_cache_bytes = 400'000;
  GrammarCompiler compiler(full_tokenizer(), padded_vocab(), eos_token(), limits);
  for (int i = 0; i < 40; ++i) {
    compiler.compile(
        schema_spec(R"({"type":"object","properties":{"p)" + std::to_string(i) + R"(":{"type":"string"}}})"));
    EXPECT_LE(compiler.counters().cached_bytes, 400'000);
  }
  const GrammarCounters before = compiler.counters();
  EXPECT_EQ(before.compiled, 40);
  EXPECT_LT(before.cached, 40);
  EXPECT_GT(before.cached, 0);
  compiler.compile(schema_spec(R"({"type":"object","properties":{"p39":{"type":"string"}}})"));
  EXPECT_EQ(compiler.counters().hits, before.hits + 1);
}

// Many who want the same at once get one compilation.
TEST(ScenariosGrammar, TheSameAtOnceIsCompiledOnce) {
  GrammarCompiler compiler(full_tokenizer(), padded_vocab(), eos_token(), paced_limits());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&compiler] { compiler.compile(schema_spec(many_properties(50))); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiler.counters().compiled, 1);
}

// A grammar whose masks take too long is refused before a request uses it.
TEST(ScenariosGrammar, SlowMasksAreRefused) {
  GrammarLimits limits = paced_limits();
  limits.max_mask_seconds = 1e-9;
  GrammarCompiler compiler(full_tokenizer(), padded_vocab(), eos_token(), limits);
  try {
    compiler.compile(pattern_spec("a+"));
    FAIL() << "a mask in a nanosecond";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("takes too long"), std::string::npos) << error.what();
  }
}

// What was too slow once is refused at once, and tried again after a while.
TEST(ScenariosGrammar, WhatWasTooSlowIsRemembered) {
  const auto refused = [](GrammarCompiler& compiler) {
    try {
      compiler.compile(pattern_spec("[a-c]+"));
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("regex: too ambiguous"), 0u) << error.what();
      return true;
    }
    return false;
  };
  for (const double seconds : {600.0, 0.0}) {
    GrammarLimits limits;
    limits.max_mask_seconds = 1e-9;  // found by trying
    limits.refuse_seconds = seconds;
    GrammarCompiler tried(full_tokenizer(), padded_vocab(), eos_token(), limits);
    EXPECT_TRUE(refused(tried));
    EXPECT_TRUE(refused(tried));
    EXPECT_EQ(tried.counters().compiled, seconds > 0 ? 1 : 2);

    limits.max_mask_seconds = 1;  // found in use
    limits.back_mask_seconds = -0.9;
    GrammarCompiler used(full_tokenizer(), padded_vocab(), eos_token(), limits);
    EXPECT_FALSE(refused(used));
    const GrammarMask mask = make_mask(used.compile(pattern_spec("[a-c]+")), false);
    std::vector<int32_t> generated;
    std::vector<uint32_t> bits(static_cast<size_t>((padded_vocab() + 31) / 32));
    bool ended = false;
    for (int i = 0; i < 4 && !ended; ++i) {
      generated.push_back(full_tokenizer().encode("a").at(0));
      std::fill(bits.begin(), bits.end(), 0);
      try {
        EXPECT_TRUE(mask(generated, bits));
      } catch (const Error&) {
        ended = true;
      }
    }
    EXPECT_TRUE(ended);
    EXPECT_EQ(refused(used), seconds > 0);
  }
}

// Compilations that run out of time hold up those of their own client, up to a number of them; nobody waits for them.
TEST(ScenariosGrammar, LateCompilationsAreTheirClients) {
  const auto bomb = [](int tag) {
    nlohmann::json any = nlohmann::json::array();
    for (int i = 0; i < 250; ++i) {
      const std::string name = std::to_string(tag) + "_" + std::to_string(i);
      any.push_back({{"type", "object"},
                     {"properties", {{"a" + name, {{"type", "string"}}}, {"b" + name, {{"type", "integer"}}}}},
                     {"required", {"a" + name, "b" + name}},
                     {"additionalProperties", false}});
    }
    return schema_spec(nlohmann::json{{"anyOf", any}}.dump());
  };
  {
    GrammarLimits limits;
    limits.max_compile_seconds = 1e-3;
    limits.max_stuck = 2;
    GrammarCompiler compiler(full_tokenizer(), padded_vocab(), eos_token(), limits);
    EXPECT_THROW(compiler.compile(bomb(1), "a"), Error);
    EXPECT_THROW(compiler.compile(bomb(2), "a"), GrammarBusy);
    EXPECT_THROW(compiler.compile(bomb(3), "b"), Error);
    EXPECT_THROW(compiler.compile(bomb(4), "c"), GrammarBusy);
    EXPECT_EQ(compiler.counters().stuck, 2);
    compiler.stop();
    EXPECT_THROW(compiler.compile(schema_spec("{}"), "d"), GrammarBusy);
  }
  EXPECT_GT(running_compilations(), 0) << "the compiler's end has waited for them";
  for (int i = 0; i < 6000 && running_compilations() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(running_compilations(), 0);
}

// With a model: the bundled one, which writes prose, made to answer in JSON.
struct ScenariosGrammarModel : ::testing::Test {
  LoadedModel loaded = load_for_cpu(std::filesystem::path(MDI_SOURCE_DIR) / "models/small");
  int32_t eos = loaded.tokenizer->marker(marker::kEos).value();
  GrammarCompiler compiler{*loaded.tokenizer, loaded.model.config().vocab_size, eos, paced_limits()};

  struct Answer {
    std::vector<int32_t> tokens;
    std::string text;
    std::optional<EndReason> end;
  };

  // All samples of one request.
  std::vector<Answer> generate(const GrammarSpec& spec, float temperature, uint64_t seed, bool draft, int32_t n = 1,
                               GrammarCompiler* with = nullptr) {
    EngineOptions options;
    options.slots = 4;
    options.max_length = 256;
    options.draft = draft;
    options.draft_always = draft;
    Engine engine(*loaded.context, loaded.model, &*loaded.tokenizer, options);
    std::vector<Answer> answers(static_cast<size_t>(n));
    Request request;
    request.prompt = loaded.tokenizer->encode("The database file is");
    request.max_tokens = 120;
    request.sampling.temperature = temperature;
    request.sampling.seed = seed;
    request.stop_ids = {eos};
    request.n = n;
    request.text = true;
    request.allowed = make_mask((with == nullptr ? compiler : *with).compile(spec), false);
    request.on_event = [&answers](const Event& event) {
      Answer& answer = answers[static_cast<size_t>(event.sample)];
      for (const GeneratedToken& token : event.tokens) answer.tokens.push_back(token.id);
      answer.text += event.text;
      answer.end = event.end;
    };
    EXPECT_TRUE(engine.submit(std::move(request)).has_value());
    engine.run();
    if (draft) {
      EXPECT_GT(engine.metrics().draft_calls, 0);
    }
    return answers;
  }
};

// Others wait for masks, so many slow ones end the request that needs them.
TEST_F(ScenariosGrammarModel, SlowMasksAreFew) {
  const GrammarMask mask = make_mask(compiler.compile(pattern_spec("(\\w+\\s?){100}$")), false);
  const int32_t letter = loaded.tokenizer->encode("a").at(0);
  std::vector<int32_t> generated;
  std::vector<uint32_t> bits(static_cast<size_t>((loaded.model.config().vocab_size + 31) / 32));
  double longest = 0, all = 0;
  bool ended = false;
  for (; generated.size() < 400 && !ended; generated.push_back(letter)) {
    std::fill(bits.begin(), bits.end(), 0);
    const std::clock_t before = std::clock();
    try {
      EXPECT_TRUE(mask(generated, bits));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("regex: too ambiguous"), std::string::npos) << error.what();
      ended = true;
    }
    const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    longest = std::max(longest, seconds);
    all += seconds;
  }
  EXPECT_TRUE(ended) << longest;
  EXPECT_LT(all, (0.3 + 0.025 * static_cast<double>(generated.size())) * kPace + longest);
}

// Greedy output with drafts is greedy output without, under a grammar too: a rejected draft leaves nothing behind.
TEST_F(ScenariosGrammarModel, DraftsChangeNothing) {
  const std::string schema = R"({"type":"object","properties":{"name":{"type":"string","maxLength":30},
    "size":{"type":"integer","minimum":1,"maximum":4096},"kind":{"enum":["table","index","view"]},
    "tags":{"type":"array","items":{"enum":["a","b"]},"minItems":2,"maxItems":3}},
    "required":["name","size","kind","tags"],"additionalProperties":false})";
  for (const float temperature : {0.0f, 0.8f}) {
    const std::vector<Answer> plain = generate(schema_spec(schema), temperature, 1, false, 3);
    const std::vector<Answer> drafted = generate(schema_spec(schema), temperature, 1, true, 3);
    for (size_t i = 0; i < plain.size(); ++i) {
      if (temperature == 0.0f) {
        EXPECT_EQ(plain[i].tokens, drafted[i].tokens);
      }
      for (const Answer* answer : {&plain[i], &drafted[i]}) {
        EXPECT_EQ(answer->end, EndReason::kStop);
        const nlohmann::json value = nlohmann::json::parse(answer->text, nullptr, false);
        ASSERT_TRUE(value.is_object()) << answer->text;
        EXPECT_TRUE(value.at("name").is_string());
        EXPECT_LE(value.at("size").get<int>(), 4096);
        EXPECT_GE(value.at("tags").size(), 2u);
        EXPECT_TRUE(value.at("kind") == "table" || value.at("kind") == "index" || value.at("kind") == "view");
      }
    }
  }
}

TEST_F(ScenariosGrammarModel, AChoiceIsMade) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kChoice;
  spec.choices = {"positive", "negative"};
  for (const bool draft : {false, true}) {
    const std::string text = generate(spec, 0.0f, 1, draft)[0].text;
    EXPECT_TRUE(text == "positive" || text == "negative") << text;
  }
}

}  // namespace
}  // namespace mdi
