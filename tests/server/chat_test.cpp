// POST /v1/chat/completions on the bundled model: what is sent, plain and streamed.
#include "talk.h"

namespace mdi {
namespace {

using testing::KeptReply;
using testing::Talk;

constexpr const char* kChat = "/v1/chat/completions";

std::string hello(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Hello!"}],"max_tokens":24,"seed":7)" + more + "}";
}

TEST(Chat, PlainAnswerHasAllMembers) {
  const Talk talk;
  const OrderedJson a = talk.chat(hello(R"(,"model":"small","temperature":0)"));
  EXPECT_EQ(a["object"], "chat.completion");
  EXPECT_EQ(a["model"], "small");
  EXPECT_TRUE(a["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_TRUE(a["system_fingerprint"].get<std::string>().starts_with("fp_"));
  ASSERT_EQ(a["choices"].size(), 1u);
  const OrderedJson& choice = a["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_TRUE(choice["message"]["refusal"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_GT(choice["message"]["content"].get<std::string>().size(), 10u);
  const OrderedJson& usage = a["usage"];
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_GT(usage["prompt_tokens"], 2);
  EXPECT_LE(usage["completion_tokens"], 24);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  talk.expect_nothing_held();
}

// What the chunks of a stream say, put together by index as clients do.
struct Joined {
  std::string role, content, reasoning, finish;
  OrderedJson calls = OrderedJson::array();
  OrderedJson logprobs = OrderedJson::array();
};
std::vector<Joined> join(const std::vector<OrderedJson>& events, size_t n) {
  std::vector<Joined> joined(n);
  for (const OrderedJson& event : events) {
    for (const OrderedJson& choice : event["choices"]) {
      Joined& j = joined.at(choice["index"].get<size_t>());
      EXPECT_EQ(j.finish, "") << "a chunk behind the finish";
      const OrderedJson& delta = choice["delta"];
      if (delta.contains("role")) j.role += delta["role"].get<std::string>();
      if (delta.contains("content")) j.content += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content")) j.reasoning += delta["reasoning_content"].get<std::string>();
      if (!choice["finish_reason"].is_null()) j.finish = choice["finish_reason"].get<std::string>();
      if (choice["logprobs"].is_object()) {
        for (const OrderedJson& token : choice["logprobs"]["content"]) j.logprobs.push_back(token);
      }
      if (!delta.contains("tool_calls")) continue;
      for (const OrderedJson& call : delta["tool_calls"]) {
        const auto index = call["index"].get<size_t>();
        if (index == j.calls.size()) {
          EXPECT_TRUE(call.contains("id"));
          j.calls.push_back(call);
        } else {
          auto& arguments = j.calls.at(index)["function"]["arguments"].get_ref<std::string&>();
          arguments += call["function"]["arguments"].get<std::string>();
        }
      }
    }
  }
  return joined;
}

TEST(Chat, StreamedIsThePlainAnswer) {
  const Talk talk;
  for (const char* more :
       {"", R"(,"temperature":0)", R"(,"n":3)", R"(,"stop":["e","a m"])", R"(,"logprobs":true,"top_logprobs":2)",
        R"(,"reasoning_effort":"low")", R"(,"reasoning_effort":20,"n":2,"logprobs":true)",
        R"(,"presence_penalty":1,"frequency_penalty":0.5,"top_k":20,"min_p":0.02)"}) {
    const OrderedJson plain = talk.chat(hello(more));
    const size_t n = plain["choices"].size();
    const auto events =
        talk.stream(kChat, hello(std::string(more) + R"(,"stream":true,"stream_options":{"include_usage":true})"));
    const auto joined = join(events, n);
    for (size_t i = 0; i < n; ++i) {
      const OrderedJson& choice = plain["choices"][i];
      const OrderedJson& message = choice["message"];
      EXPECT_EQ(joined[i].role, "assistant");
      EXPECT_EQ(joined[i].content, message["content"]) << more;
      EXPECT_EQ(joined[i].reasoning, message.value("reasoning_content", "")) << more;
      EXPECT_EQ(joined[i].finish, choice["finish_reason"]) << more;
      const OrderedJson logprobs =
          choice["logprobs"].is_object() ? choice["logprobs"]["content"] : OrderedJson::array();
      EXPECT_EQ(joined[i].logprobs, logprobs) << more;
    }
    // All chunks but the last say that there is no usage yet.
    const OrderedJson& last = events.back();
    EXPECT_TRUE(last["choices"].empty());
    EXPECT_EQ(last["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]) << more;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      EXPECT_TRUE(events[i].contains("usage") && events[i]["usage"].is_null());
      EXPECT_EQ(events[i]["id"], last["id"]);
      EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    }
  }
  talk.expect_nothing_held();
}

TEST(Chat, SeedsDecideTheAnswer) {
  const Talk talk;
  const auto text = [&](const std::string& seed) {
    return talk.chat(R"({"messages":[{"role":"user","content":"What is a ship?"}],"max_tokens":24,"temperature":1)" +
                     seed + "}")["choices"][0]["message"]["content"];
  };
  EXPECT_EQ(text(R"(,"seed":1)"), text(R"(,"seed":1)"));
  EXPECT_NE(text(R"(,"seed":1)"), text(R"(,"seed":2)"));
  EXPECT_NE(text(""), text(""));  // none given: another one each time
}

TEST(Chat, SamplesOfOneRequestDiffer) {
  const Talk talk;
  const OrderedJson a = talk.chat(hello(R"(,"n":3,"temperature":1.5)"));
  ASSERT_EQ(a["choices"].size(), 3u);
  EXPECT_NE(a["choices"][0]["message"], a["choices"][1]["message"]);
  EXPECT_EQ(a["choices"][2]["index"], 2);
}

TEST(Chat, LengthAndStop) {
  const Talk talk;
  OrderedJson a =
      talk.chat(R"({"messages":[{"role":"user","content":"Hello!"}],"max_completion_tokens":3,"temperature":0})");
  EXPECT_EQ(a["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(a["usage"]["completion_tokens"], 3);
  const auto whole = talk.chat(hello(R"(,"temperature":0)"))["choices"][0]["message"]["content"].get<std::string>();
  ASSERT_GT(whole.size(), 20u);
  const std::string stop = whole.substr(10, 4);
  const size_t at = whole.find(stop);
  OrderedJson body = parse_ordered_json(hello(R"(,"temperature":0)"), "");
  body["stop"] = stop;
  a = talk.chat(body.dump());
  EXPECT_EQ(a["choices"][0]["message"]["content"], whole.substr(0, at));
  EXPECT_EQ(a["choices"][0]["finish_reason"], "stop");
}

// Stop strings look at content only: reasoning goes on over them.
TEST(Chat, StopStringsLeaveReasoningAlone) {
  const Talk talk;
  const std::string body =
      R"({"messages":[{"role":"user","content":"What is a ship?"}],"max_tokens":60,"temperature":0,"reasoning_effort":"high")";
  const OrderedJson free = talk.chat(body + "}")["choices"][0]["message"];
  const auto reasoning = free["reasoning_content"].get<std::string>();
  ASSERT_GT(reasoning.size(), 8u);
  OrderedJson stopped = parse_ordered_json(body + "}", "");
  stopped["stop"] = reasoning.substr(2, 5);
  EXPECT_EQ(talk.chat(stopped.dump())["choices"][0]["message"]["reasoning_content"], reasoning);
}

TEST(Chat, ReasoningIsCounted) {
  const Talk talk;
  const OrderedJson a = talk.chat(hello(R"(,"reasoning_effort":"max")"));
  EXPECT_GT(a["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LE(a["usage"]["completion_tokens_details"]["reasoning_tokens"], a["usage"]["completion_tokens"]);
  EXPECT_TRUE(a["choices"][0]["message"].contains("reasoning_content"));
  for (const char* off : {R"(,"reasoning_effort":"none")", R"(,"thinking":{"type":"disabled"})",
                          R"(,"chat_template_kwargs":{"thinking":false})"}) {
    EXPECT_FALSE(talk.chat(hello(off))["choices"][0]["message"].contains("reasoning_content")) << off;
  }
}

TEST(Chat, LogprobsBelongToTheTokens) {
  const Talk talk;
  const OrderedJson a = talk.chat(hello(R"(,"logprobs":true,"top_logprobs":3,"temperature":0)"));
  const OrderedJson& choice = a["choices"][0];
  std::string text, bytes;
  for (const OrderedJson& token : choice["logprobs"]["content"]) {
    text += token["token"].get<std::string>();
    for (const OrderedJson& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_LE(token["logprob"], 0);
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    // Greedy: the token is the most likely one.
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  EXPECT_EQ(bytes, choice["message"]["content"]);
  EXPECT_EQ(text, choice["message"]["content"]);
}

TEST(Chat, ABiasBansAToken) {
  const Talk talk;
  const OrderedJson a = talk.chat(hello(R"(,"logprobs":true,"temperature":0)"));
  const std::string first = a["choices"][0]["logprobs"]["content"][0]["token"];
  const auto ids =
      talk.ask("/tokenize", OrderedJson({{"prompt", first}, {"add_special_tokens", false}}).dump())["tokens"];
  ASSERT_EQ(ids.size(), 1u);
  const OrderedJson b = talk.chat(
      hello(R"(,"logprobs":true,"temperature":0,"logit_bias":{")" + std::to_string(ids[0].get<int>()) + R"(":-100})"));
  EXPECT_NE(b["choices"][0]["logprobs"]["content"][0]["token"], first);
}

TEST(Chat, AContinuedAnswerStaysContent) {
  const Talk talk;
  const OrderedJson a = talk.chat(
      R"({"messages":[{"role":"user","content":"What is a ship?"},{"role":"assistant","content":"A ship is","prefix":true}],)"
      R"("max_tokens":8,"temperature":0,"reasoning_effort":"high"})");
  EXPECT_FALSE(a["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_GT(a["choices"][0]["message"]["content"].get<std::string>().size(), 3u);
}

}  // namespace
}  // namespace mdi
