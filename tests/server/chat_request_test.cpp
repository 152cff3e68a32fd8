// Every member of a chat request: what it becomes, its bounds, and that an error names it.
#include "server/openai/chat_request.h"

#include "talk.h"

namespace mdi {
namespace {

using testing::Talk;

struct ChatRequestTest : ::testing::Test {
  Talk talk{Talk::engine_options(), Talk::service_options(), false};

  ChatRequest parse(const std::string& members) {
    const std::string body = R"({"messages":[{"role":"user","content":"hi"}])" + members + "}";
    const OrderedJson json = parse_body(body);
    return parse_chat_request(json, *talk.service);
  }
  Generation generation(const std::string& members) { return parse(members).generation; }
  // The path of the member that an error names; "" for none.
  std::string refused(const std::string& body, std::string* message = nullptr) {
    try {
      const OrderedJson json = parse_body(body);
      parse_chat_request(json, *talk.service);
    } catch (const ApiError& error) {
      if (message != nullptr) *message = error.what();
      return error.param();
    }
    return "accepted";
  }
  std::string refused_member(const std::string& members, std::string* message = nullptr) {
    return refused(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}", message);
  }
};

TEST_F(ChatRequestTest, DefaultsAreTheServers) {
  const Generation g = generation("");
  EXPECT_FALSE(g.thinking);
  EXPECT_EQ(g.effort, 75);
  EXPECT_FLOAT_EQ(g.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(g.sampling.top_p, 0.95f);
  EXPECT_EQ(g.n, 1);
  EXPECT_FALSE(g.max_tokens.has_value());
  EXPECT_FALSE(g.logprobs.has_value());
  EXPECT_FALSE(constrains(g.grammar));
  // null is the same as nothing.
  const Generation n = generation(
      R"(,"temperature":null,"n":null,"stop":null,"max_tokens":null,"tools":null,"response_format":null,"logit_bias":null)");
  EXPECT_FLOAT_EQ(n.sampling.temperature, 0.6f);
  EXPECT_EQ(n.n, 1);
}

TEST_F(ChatRequestTest, SamplingMembers) {
  const Generation g = generation(
      R"(,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"presence_penalty":-2,"frequency_penalty":2,)"
      R"("repetition_penalty":1.1,"seed":-1,"n":16,"logit_bias":{"5":-100,"7":1.5},"ignore_eos":true,"cache_salt":"a")");
  EXPECT_FLOAT_EQ(g.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(g.sampling.top_p, 0.9f);
  EXPECT_EQ(g.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(g.sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(g.sampling.presence_penalty, -2);
  EXPECT_FLOAT_EQ(g.sampling.frequency_penalty, 2);
  EXPECT_FLOAT_EQ(g.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(g.sampling.seed, UINT64_MAX);
  EXPECT_EQ(g.n, 16);
  ASSERT_EQ(g.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(g.sampling.logit_bias[1].token, 7);
  EXPECT_FLOAT_EQ(g.sampling.logit_bias[1].bias, 1.5f);
  EXPECT_TRUE(g.ignore_eos);
  EXPECT_EQ(g.salt, "a");
  EXPECT_FALSE(g.draft);  // the same seed gives the same answer
  EXPECT_TRUE(generation(R"(,"seed":1,"temperature":0)").draft);
  EXPECT_TRUE(generation("").draft);
  EXPECT_EQ(generation(R"(,"top_k":-1)").sampling.top_k, 0);
  EXPECT_GT(generation(R"(,"top_p":0)").sampling.top_p, 0);
  EXPECT_EQ(generation(R"(,"n":2.0)").n, 2);
  EXPECT_EQ(generation(R"(,"max_completion_tokens":9)").max_tokens_name, "max_completion_tokens");
  EXPECT_EQ(generation(R"(,"logprobs":true,"top_logprobs":20)").logprobs, 20);
  EXPECT_EQ(generation(R"(,"stop":"x")").stop, std::vector<std::string>{"x"});
  EXPECT_EQ(generation(R"(,"stop":["x","y"])").stop.size(), 2u);
}

TEST_F(ChatRequestTest, ErrorsNameTheMember) {
  const struct {
    const char *members, *param;
  } cases[] = {
      {R"("temperature":2.1)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("temperature":true)", "temperature"},
      {R"("top_p":-0.1)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("min_p":1.5)", "min_p"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":[])", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("n":1.5)", "n"},
      {R"("n":99999999999999999999)", "n"},
      {R"("seed":"a")", "seed"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":5,"max_completion_tokens":6)", "max_tokens"},
      {R"("stop":5)", "stop"},
      {R"("stop":["a",5])", "stop[1]"},
      {R"("stop":[""])", "stop[0]"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","0","1","2","3","4","5","6","7"])", "stop"},
      {R"("logit_bias":[])", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"4096":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias.5"},
      {R"("logit_bias":{"5":1,"05":2})", "logit_bias"},
      {R"("logprobs":5)", "logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stream":true,"stream_options":{"other":1})", "stream_options.other"},
      {R"("reasoning_effort":"huge")", "reasoning_effort"},
      {R"("reasoning_effort":101)", "reasoning_effort"},
      {R"("thinking":{"type":"on"})", "thinking.type"},
      {R"("chat_template_kwargs":{"thinking":1})", "chat_template_kwargs.thinking"},
      {R"("chat_template_kwargs":{"other":1})", "chat_template_kwargs.other"},
      {R"("response_format":"json")", "response_format"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})", "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})", "response_format.json_schema.name"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a b","schema":{}}})",
       "response_format.json_schema.name"},
      {R"("regex":"a","choice":["a"])", "choice"},
      {R"("response_format":{"type":"json_object"},"regex":"a")", "regex"},
      {R"("choice":[])", "choice"},
      {R"("choice":[1])", "choice[0]"},
      {R"("modalities":["text","audio"])", "modalities"},
      {R"("audio":{})", "audio"},
      {R"("prediction":{})", "prediction"},
      {R"("web_search_options":{})", "web_search_options"},
      {R"("functions":[])", "functions"},
      {R"("function_call":"auto")", "function_call"},
      {R"("verbosity":"low")", "verbosity"},
      {R"("max_tokns":5)", "max_tokns"},
      {R"("model":"gpt-4")", "model"},
      {R"("model":5)", "model"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":"maybe")", "tool_choice"},
      {R"("tools":{})", "tools"},
      {R"("tools":[{}])", "tools[0].type"},
      {R"("tools":[{"type":"custom"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"a","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])",
       "tools[1].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":{"type":"function","function":{"name":"b"}})",
       "tool_choice.function.name"},
  };
  for (const auto& c : cases) {
    std::string message;
    EXPECT_EQ(refused_member(c.members, &message), c.param) << c.members;
    EXPECT_NE(message.find(std::string(c.param) == "model" ? "model" : c.param), std::string::npos) << message;
  }
}

TEST_F(ChatRequestTest, IgnoredMembersAreTaken) {
  generation(R"(,"user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","safety_identifier":"x",)"
             R"("prompt_cache_key":"k","prompt_cache_retention":"24h","modalities":["text"],"verbosity":"medium",)"
             R"("stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false})");
}

TEST_F(ChatRequestTest, MessagesAreChecked) {
  const struct {
    const char *messages, *param;
  } cases[] = {
      {"5", "messages"},
      {"[]", "messages"},
      {"[5]", "messages[0]"},
      {R"([{"content":"a"}])", "messages[0].role"},
      {R"([{"role":"robot","content":"a"}])", "messages[0].role"},
      {R"([{"role":"function","name":"f","content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":["a"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"input_audio"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":"a","tool_calls":[{}]}])", "messages[0].tool_calls[0].function"},
      {R"([{"role":"tool","content":"a"}])", "messages[0].tool_call_id"},
      {R"([{"role":"tool","tool_call_id":"c1","content":"a"}])", "messages[0].tool_call_id"},
      {R"([{"role":"user","content":"a","whatever":1}])", "messages[0].whatever"},
      {R"([{"role":"user","content":[{"type":"text","text":"a","whatever":1}]}])", "messages[0].content[0].whatever"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])", "messages[1].role"},
      {R"([{"role":"assistant","content":"b","prefix":true},{"role":"user","content":"a"}])", "messages[0].prefix"},
      {R"([{"role":"assistant","content":"b","prefix":true}])", "messages"},
      {R"([{"role":"system","content":"a"},{"role":"assistant","content":"b","prefix":true}])", "messages"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
       R"({"role":"assistant","content":"c","prefix":true}])",
       "messages"},
      {R"([{"role":"system","content":"a"}])", "messages"},
      {R"([{"role":"latest_reminder","content":"a"}])", "messages"},
      {R"([{"role":"assistant","function_call":{}},{"role":"user","content":"a"}])", "messages[0].function_call"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]},{"role":"user","content":"a"}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]},{"role":"user","content":"a"}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f\">","arguments":"{}"}}]},{"role":"user","content":"a"}])",
       "messages[0].tool_calls[0].function.name"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(refused(std::string(R"({"messages":)") + c.messages + "}"), c.param) << c.messages;
  }
  // Calls and their results.
  const auto history = [&](const std::string& calls, const std::string& result) {
    return refused(R"({"messages":[{"role":"assistant","tool_calls":[)" + calls +
                   R"(]},{"role":"tool","content":"a",)" + result + "}]}");
  };
  const std::string function = R"("function":{"name":"f","arguments":"{}"})";
  const std::string call = R"({"id":"c1","type":"function","index":0,)" + function + "}";
  EXPECT_EQ(history(call, R"("tool_call_id":"c1","name":"f")"), "accepted");
  EXPECT_EQ(history(call, R"("tool_call_id":"c2")"), "messages[1].tool_call_id");
  EXPECT_EQ(history(call + "," + call, R"("tool_call_id":"c1")"), "messages[0].tool_calls[1].id");
  EXPECT_EQ(history(R"({"id":"c1","whatever":1,)" + function + "}", R"("tool_call_id":"c1")"),
            "messages[0].tool_calls[0].whatever");
  EXPECT_EQ(history(R"({"id":"c1","function":{"name":"f","whatever":1}})", R"("tool_call_id":"c1")"),
            "messages[0].tool_calls[0].function.whatever");
  EXPECT_EQ(history(R"({"id":"c1","function":{"name":"f","arguments":"{}","parsed_arguments":{}}})",
                    R"("tool_call_id":"c1")"),
            "accepted");
  // An image to a model that takes text only is an error that says where it is.
  EXPECT_EQ(refused(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
                    R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]})")
                .substr(0, 22),
            "messages[0].content[1]");
}

TEST_F(ChatRequestTest, RolesAndHistory) {
  const OrderedJson json = parse_body(
      R"({"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"2+2?"},)"
      R"({"role":"assistant","content":null,"reasoning_content":"Add.","tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"add","arguments":"{\"a\": 2}"}}]},{"role":"tool","tool_call_id":"c1","content":"4"}]})");
  const Generation g = parse_chat_request(json, *talk.service).generation;
  ASSERT_EQ(g.messages.size(), 4u);
  EXPECT_EQ(g.messages[0].role, Role::kSystem);
  EXPECT_EQ(g.messages[2].reasoning, "Add.");
  EXPECT_EQ(g.messages[2].tool_calls[0].arguments, R"({"a": 2})");
  EXPECT_EQ(g.messages[3].tool_call_id, "c1");
}

TEST_F(ChatRequestTest, WhatCanBeAnswered) {
  for (const char* messages : {R"([{"role":"system","content":"a"},{"role":"system","content":"b"}])",
                               R"([{"role":"system","content":"a","task":"title"}])",
                               R"([{"role":"user","content":"a"},{"role":"latest_reminder","content":"b"}])",
                               R"([{"role":"user","content":[]},{"role":"assistant","content":"","prefix":true}])"}) {
    EXPECT_EQ(refused(std::string(R"({"messages":)") + messages + "}"), "accepted") << messages;
  }
}

TEST_F(ChatRequestTest, ToolsAndFormats) {
  using Choice = GrammarSpec::ToolChoice;
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}])";
  EXPECT_EQ(generation(tools).grammar.tool_choice, Choice::kAuto);
  EXPECT_TRUE(generation(tools).grammar.tools[0].strict);
  EXPECT_EQ(generation(tools).messages.front().tools.size(), 1u);
  EXPECT_EQ(generation(tools + R"(,"tool_choice":"none")").grammar.tool_choice, Choice::kNone);
  EXPECT_EQ(generation(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)").grammar.tool_choice,
            Choice::kRequired);
  EXPECT_FALSE(generation(tools + R"(,"parallel_tool_calls":false)").grammar.parallel);
  const Generation named = generation(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.grammar.tool_choice, Choice::kNamed);
  EXPECT_EQ(named.grammar.tool_name, "f");

  const Generation schema = generation(
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}})");
  EXPECT_EQ(schema.grammar.kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_TRUE(schema.grammar.strict);
  EXPECT_EQ(schema.messages.front().response_format, R"({"type": "object"})");
  EXPECT_EQ(generation(R"(,"response_format":{"type":"json_object"})").grammar.kind, GrammarSpec::Kind::kJsonObject);
  EXPECT_EQ(generation(R"(,"response_format":{"type":"text"})").grammar.kind, GrammarSpec::Kind::kNone);
  EXPECT_EQ(generation(R"(,"regex":"[ab]+")").grammar.pattern, "[ab]+");
  EXPECT_EQ(generation(R"(,"choice":["yes","no"])").grammar.choices.size(), 2u);
}

TEST_F(ChatRequestTest, EffortAndThinking) {
  EXPECT_EQ(generation(R"(,"reasoning_effort":"low")").effort, 50);
  EXPECT_TRUE(generation(R"(,"reasoning_effort":"low")").thinking);
  EXPECT_EQ(generation(R"(,"reasoning_effort":"high")").effort, 75);
  EXPECT_EQ(generation(R"(,"reasoning_effort":"max")").effort, 100);
  EXPECT_EQ(generation(R"(,"reasoning_effort":33)").effort, 33);
  EXPECT_FALSE(generation(R"(,"reasoning_effort":"none")").thinking);
  EXPECT_TRUE(generation(R"(,"thinking":{"type":"enabled"})").thinking);
  EXPECT_TRUE(generation(R"(,"chat_template_kwargs":{"enable_thinking":true})").thinking);
}

TEST_F(ChatRequestTest, BodiesAreBounded) {
  const auto fails = [](const std::string& body) {
    try {
      parse_body(body);
    } catch (const ApiError& error) {
      return error.code();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(fails(""), "invalid_json");
  EXPECT_EQ(fails("[]"), "invalid_json");
  EXPECT_EQ(fails("{\"a\":"), "invalid_json");
  EXPECT_EQ(fails("{\"a\":\"\xFF\"}"), "invalid_json");
  EXPECT_EQ(fails(R"({"a":1,"b":2,"a":3})"), "invalid_json");
  EXPECT_EQ(fails(R"({"a":[{"b":{"c":1,"c":1}}]})"), "invalid_json");
  EXPECT_EQ(fails(R"({"a":{"a":1},"b":[{"a":1},{"a":1}]})"), "accepted");
  std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(fails(deep), "invalid_json");
  std::string many = "{\"a\":[";
  for (int64_t i = 0; i <= kMaxBodyValues; ++i) many += "0,";
  many += "0]}";
  EXPECT_EQ(fails(many), "invalid_json");
}

}  // namespace
}  // namespace mdi
