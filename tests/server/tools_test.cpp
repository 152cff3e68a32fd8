// Tool calls and structured output over the API. The bundled model can neither by itself; the grammar makes it.
#include <chrono>
#include <thread>

#include "talk.h"

namespace mdi {
namespace {

using testing::Talk;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"add","strict":true,"parameters":{"type":"object","properties":)"
    R"({"a":{"type":"integer","minimum":0,"maximum":99},"b":{"type":"integer","minimum":0,"maximum":99}},)"
    R"("required":["a","b"],"additionalProperties":false}}},{"type":"function","function":{"name":"say","strict":true,)"
    R"("parameters":{"type":"object","properties":{"text":{"type":"string","maxLength":12}},"required":["text"],)"
    R"("additionalProperties":false}}}])";

std::string ask(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"What is 2 and 3?"}],"max_tokens":300,"temperature":1,"seed":5,)" +
         more + "}";
}

void expect_call(const OrderedJson& call) {
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["type"], "function");
  const OrderedJson arguments = parse_ordered_json(call["function"]["arguments"].get<std::string>(), "arguments");
  if (call["function"]["name"] == "add") {
    ASSERT_EQ(arguments.size(), 2u);
    EXPECT_TRUE(arguments["a"].is_number_integer() && arguments["b"].is_number_integer());
    EXPECT_LE(arguments["a"], 99);
  } else {
    ASSERT_EQ(call["function"]["name"], "say");
    EXPECT_TRUE(arguments["text"].is_string());
  }
}

TEST(Tools, ChoicesDoWhatTheySay) {
  const Talk talk;
  for (const char* thinking : {R"("reasoning_effort":"none",)", R"("reasoning_effort":"low",)"}) {
    OrderedJson choice = talk.chat(ask(std::string(thinking) + kTools + R"(,"tool_choice":"required")"))["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice.dump();
    ASSERT_GE(choice["message"]["tool_calls"].size(), 1u);
    for (const OrderedJson& call : choice["message"]["tool_calls"]) expect_call(call);
    EXPECT_TRUE(choice["message"]["content"].is_null());

    choice = talk.chat(ask(std::string(thinking) + kTools +
                           R"(,"tool_choice":{"type":"function","function":{"name":"say"}})"))["choices"][0];
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice.dump();
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "say");
    expect_call(choice["message"]["tool_calls"][0]);

    choice = talk.chat(ask(std::string(thinking) + kTools + R"(,"tool_choice":"none")"))["choices"][0];
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_NE(choice["finish_reason"], "tool_calls");

    choice = talk.chat(
        ask(std::string(thinking) + kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)"))["choices"][0];
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  }
  // The model is free: it does not know how to call, and answers.
  EXPECT_TRUE(talk.chat(ask(kTools))["choices"][0]["message"]["content"].is_string());
  talk.expect_nothing_held();
}

// Deltas of a streamed call: first id, name and empty arguments, then pieces of the arguments.
TEST(Tools, StreamedCallsArriveInPieces) {
  const Talk talk;
  const std::string body = std::string(R"("reasoning_effort":"none",)") + kTools + R"(,"tool_choice":"required")";
  const OrderedJson plain = talk.chat(ask(body))["choices"][0]["message"]["tool_calls"];
  std::vector<std::string> names, arguments;
  int pieces = 0;
  std::string finish;
  for (const OrderedJson& event : talk.stream("/v1/chat/completions", ask(body + R"(,"stream":true)"))) {
    const OrderedJson& choice = event["choices"][0];
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    if (!choice["delta"].contains("tool_calls")) continue;
    const OrderedJson& call = choice["delta"]["tool_calls"][0];
    const auto index = call["index"].get<size_t>();
    if (call.contains("id")) {
      EXPECT_EQ(index, names.size());
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["arguments"], "");
      names.push_back(call["function"]["name"]);
      arguments.emplace_back();
    } else {
      EXPECT_FALSE(call["function"].contains("name"));
      arguments.at(index) += call["function"]["arguments"].get<std::string>();
      ++pieces;
    }
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_GT(pieces, 1);
  ASSERT_EQ(names.size(), plain.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i], plain[i]["function"]["name"]);
    EXPECT_EQ(arguments[i], plain[i]["function"]["arguments"]);
  }
}

TEST(Formats, SchemaObjectRegexAndChoice) {
  const Talk talk;
  const std::string schema =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"r","strict":true,"schema":{"type":"object",)"
      R"("properties":{"name":{"type":"string","maxLength":16},"age":{"type":"integer","minimum":0,"maximum":150}},)"
      R"("required":["name","age"],"additionalProperties":false}}})";
  for (const char* thinking : {R"("reasoning_effort":"none",)", R"("reasoning_effort":"low",)"}) {
    const OrderedJson choice = talk.chat(ask(thinking + schema))["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    const OrderedJson value = parse_ordered_json(choice["message"]["content"].get<std::string>(), "content");
    ASSERT_EQ(value.size(), 2u) << value.dump();
    EXPECT_TRUE(value["name"].is_string());
    EXPECT_LE(value["age"], 150);
  }
  std::string content = talk.chat(ask(R"("choice":["yes","no"])"))["choices"][0]["message"]["content"];
  EXPECT_TRUE(content == "yes" || content == "no") << content;
  content = talk.chat(ask(R"("regex":"[a-c]{3}-[0-9]{2}")"))["choices"][0]["message"]["content"];
  ASSERT_EQ(content.size(), 6u) << content;
  EXPECT_EQ(content[3], '-');
  const OrderedJson text = talk.ask("/v1/completions", R"({"prompt":"A number:","max_tokens":40,"regex":"[0-9]{4}"})");
  EXPECT_EQ(text["choices"][0]["text"].get<std::string>().size(), 4u);
  talk.expect_nothing_held();
}

TEST(Formats, WhatCannotBeCompiledIsTheClientsFault) {
  const Talk talk;
  const struct {
    const char *member, *param;
  } cases[] = {
      {R"("regex":"(a")", "regex"},
      {R"("regex":"(a{1000}){1000000}")", "regex"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"r","schema":{"type":"nothing"}}})",
       "response_format.json_schema.schema.type"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"r","strict":true,"schema":{"type":"object",)"
       R"("properties":{"a b":{"anyOf":[{"type":"null"},{"if":{}}]}},"required":["a b"],"additionalProperties":false}}})",
       "response_format.json_schema.schema.properties.a b.anyOf[1].if"},
      {R"("regex":"[]")", "regex"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"r","schema":{"$ref":"#"}}})",
       "response_format"},
      {R"("tools":[{"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object",)"
       R"("properties":{"a":false},"required":["a"],"additionalProperties":false}}}])",
       "tools[0]"},
      {R"("tools":[{"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object",)"
       R"("required":["zz"]}}}])",
       "tools[0]"},
      {R"("tools":[{"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object",)"
       R"("properties":{"a":{"type":"string","format":"color"}},"required":["a"],"additionalProperties":false}}}])",
       "tools[0].function.parameters.properties.a.format"},
  };
  for (const auto& c : cases) {
    const auto reply = talk.post("/v1/chat/completions", ask(c.member));
    EXPECT_EQ(reply->status(), 400) << c.member;
    const OrderedJson param = reply->json()["error"]["param"];
    EXPECT_TRUE(param.is_string() && param.get<std::string>().starts_with(c.param)) << reply->body();
  }
  talk.expect_nothing_held();
}

// The answer ends where the grammar does, and only there.
TEST(Formats, WhoIgnoresTheEndGetsAllOfTheGrammar) {
  const Talk talk;
  OrderedJson choice = talk.chat(ask(R"("regex":"[ab]{3}","ignore_eos":true)"))["choices"][0];
  EXPECT_EQ(choice["message"]["content"].get<std::string>().size(), 3u) << choice.dump();
  EXPECT_EQ(choice["finish_reason"], "stop");
  choice = talk.chat(ask(R"("choice":["yes","no"],"ignore_eos":true)"))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  const OrderedJson open = talk.chat(ask(R"("regex":"[ab]*","ignore_eos":true)"));
  EXPECT_EQ(open["usage"]["completion_tokens"], 300);
  EXPECT_EQ(open["choices"][0]["finish_reason"], "length");
  talk.expect_nothing_held();
}

// A grammar that turns out to be slow: the client hears which member it was, before its stream or in it.
TEST(Formats, TooSlowInUseIsTheClientsFault) {
  ServiceOptions options = Talk::service_options();
  options.grammar.back_mask_seconds = 0;
  const Talk talk(Talk::engine_options(), options);
  const auto reply = talk.post("/v1/chat/completions", ask(R"("regex":"(\\w*\\s*){60}")"));
  EXPECT_EQ(reply->status(), 400) << reply->body();
  const OrderedJson error = reply->json()["error"];
  EXPECT_EQ(error["param"], "regex");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_NE(error["message"].get<std::string>().find("too ambiguous"), std::string::npos) << reply->body();
  const std::string streamed =
      talk.post("/v1/chat/completions", ask(R"("regex":"(\\w*\\s*){61}","stream":true)"))->body();
  EXPECT_NE(streamed.find(R"("type":"invalid_request_error","param":"regex")"), std::string::npos) << streamed;
  talk.expect_nothing_held();
}

// What a client may ask for again later is no fault of its own.
TEST(Formats, ABusyCompilerSaysWhenToTryAgain) {
  ServiceOptions options = Talk::service_options();
  options.grammar.max_compile_seconds = 1e-3;
  const Talk talk(Talk::engine_options(), options);
  const auto post = [&](const char* path, int tag, const char* client) {
    std::string any;
    for (int i = 0; i < 400; ++i) {
      const std::string name = "\"a" + std::to_string(tag) + "_" + std::to_string(i) + "\"";
      any += (i > 0 ? "," : "") +
             (R"({"type":"object","properties":{)" + name + R"(:{"type":"string"}},"required":[)") + name +
             R"(],"additionalProperties":false})";
    }
    const std::string schema = R"({"anyOf":[)" + any + "]}";
    const std::string body =
        std::string(path) == "/v1/messages"
            ? R"({"model":"small","max_tokens":9,"messages":[{"role":"user","content":"x"}],"output_config":{"format":)"
              R"({"type":"json_schema","schema":)" +
                  schema + "}}}"
            : ask(R"("response_format":{"type":"json_schema","json_schema":{"name":"r","strict":true,"schema":)" +
                  schema + "}}");
    auto reply = talk.send("POST", path, body, client);
    EXPECT_TRUE(reply->wait());
    return reply;
  };
  EXPECT_EQ(post("/v1/chat/completions", 1, "a")->status(), 400);
  auto reply = post("/v1/chat/completions", 2, "a");
  EXPECT_EQ(reply->status(), 503) << reply->body();
  EXPECT_EQ(reply->header("retry-after"), "5");
  EXPECT_EQ(reply->json()["error"]["code"], "compiler_busy");
  reply = post("/v1/messages", 3, "a");
  EXPECT_EQ(reply->status(), 529) << reply->body();
  EXPECT_EQ(reply->header("retry-after"), "5");
  EXPECT_EQ(reply->json()["error"]["type"], "overloaded_error");
  reply = post("/v1/messages", 4, "b");  // is compiled, and runs out of time by itself
  EXPECT_EQ(reply->status(), 400);
  EXPECT_EQ(reply->json()["error"]["message"].get<std::string>().find("output_config.format: compiling takes"), 0u);
  for (int i = 0; i < 6000 && running_compilations() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

// Anthropic's member has another name.
TEST(Formats, ErrorsNameTheMemberOfTheirApi) {
  const Talk talk;
  const auto said = [&](const std::string& schema) {
    const auto reply = talk.post(
        "/v1/messages", R"({"model":"small","max_tokens":9,"messages":[{"role":"user","content":"x"}],"output_config":)"
                        R"({"format":{"type":"json_schema","schema":)" +
                            schema + "}}}");
    EXPECT_EQ(reply->status(), 400) << reply->body();
    return reply->json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(said(R"({"$ref":"#"})"), "output_config.format: nothing can satisfy it");
  EXPECT_EQ(said(R"({"type":"nothing"})").find("output_config.format.schema.type: expected"), 0u);
}

// What is too long is said of the part that is, and a schema that no grammar takes is not tokenised first.
TEST(Formats, WhatIsTooLongIsNamed) {
  const Talk talk;
  const auto param = [&](const std::string& member) {
    const auto reply = talk.post("/v1/chat/completions", ask(member));
    EXPECT_EQ(reply->status(), 400) << reply->body().substr(0, 300);
    return reply->json()["error"]["param"].get<std::string>();
  };
  const auto schema = [](const std::string& text) {
    return R"("response_format":{"type":"json_schema","json_schema":{"name":"r","schema":)" + text + "}}";
  };
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "word" + std::to_string(i) + " ";
  const std::string described = R"({"type":"object","description":")" + words + "\"}";
  EXPECT_EQ(param(schema(described)), "response_format");
  EXPECT_EQ(param(R"("tools":[{"type":"function","function":{"name":"g","parameters":)" + described + "}}]"), "tools");
  EXPECT_EQ(param(R"("choice":[")" + std::string(300'000, 'x') + "\"]"), "choice");
  std::string nested = R"({"type":"null"})";
  for (int depth = 0; depth < 15; ++depth) nested = R"({"anyOf":[)" + nested + "," + nested + "]}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(param(schema(nested)), "response_format");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * kPace * std::chrono::seconds(1));
}

}  // namespace
}  // namespace mdi
