// POST /v1/completions, /tokenize, /detokenize, GET /v1/models.
#include <set>

#include "talk.h"

namespace mdi {
namespace {

using testing::Talk;

constexpr const char* kPath = "/v1/completions";

std::string completion(const std::string& prompt, const std::string& more = "") {
  const bool greedy = more.find("temperature") == std::string::npos;
  return R"({"prompt":)" + prompt + R"(,"max_tokens":12,"seed":3)" + (greedy ? R"(,"temperature":0)" : "") + more + "}";
}

TEST(Completions, TextTokensAndLists) {
  const Talk talk;
  const OrderedJson one = talk.ask(kPath, completion(R"("The database file is")"));
  EXPECT_EQ(one["object"], "text_completion");
  const std::string text = one["choices"][0]["text"];
  EXPECT_GT(text.size(), 5u);
  const OrderedJson ids = talk.ask("/tokenize", R"({"prompt":"The database file is"})")["tokens"];
  EXPECT_EQ(talk.ask(kPath, completion(ids.dump()))["choices"][0]["text"], text);
  const OrderedJson two =
      talk.ask(kPath, completion("[\"The database file is\"," + ids.dump() + ",\"A ship\"]", R"(,"n":2)"));
  ASSERT_EQ(two["choices"].size(), 6u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(two["choices"][i]["text"], text) << i;  // greedy: samples are equal
  EXPECT_EQ(two["choices"][5]["index"], 5);
  EXPECT_EQ(two["usage"]["completion_tokens"], 6 * 12);
  talk.expect_nothing_held();
}

TEST(Completions, StreamedIsThePlainAnswer) {
  const Talk talk;
  for (const char* more :
       {"", R"(,"n":2,"temperature":1)", R"(,"echo":true)", R"(,"logprobs":2)", R"(,"stop":["e"])"}) {
    const std::string prompts = R"(["The Bible says","A ship"])";
    const OrderedJson plain = talk.ask(kPath, completion(prompts, more));
    const auto events = talk.stream(
        kPath, completion(prompts, std::string(more) + R"(,"stream":true,"stream_options":{"include_usage":true})"));
    std::vector<std::string> texts(plain["choices"].size()), finishes(texts.size());
    std::vector<OrderedJson> tokens(texts.size(), OrderedJson::array()), offsets = tokens;
    for (const OrderedJson& event : events) {
      for (const OrderedJson& choice : event["choices"]) {
        const auto i = choice["index"].get<size_t>();
        texts[i] += choice["text"].get<std::string>();
        if (choice["finish_reason"].is_string()) finishes[i] = choice["finish_reason"];
        if (!choice["logprobs"].is_object()) continue;
        for (const OrderedJson& token : choice["logprobs"]["tokens"]) tokens[i].push_back(token);
        for (const OrderedJson& offset : choice["logprobs"]["text_offset"]) offsets[i].push_back(offset);
      }
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i], plain["choices"][i]["text"]) << more;
      EXPECT_EQ(finishes[i], plain["choices"][i]["finish_reason"]) << more;
      if (!plain["choices"][i]["logprobs"].is_object()) continue;
      EXPECT_EQ(tokens[i], plain["choices"][i]["logprobs"]["tokens"]);
      EXPECT_EQ(offsets[i], plain["choices"][i]["logprobs"]["text_offset"]);
    }
    EXPECT_EQ(events.back()["usage"],
              plain["usage"].patch(
                  OrderedJson::array({{{"op", "replace"},
                                       {"path", "/prompt_tokens_details/cached_tokens"},
                                       {"value", events.back()["usage"]["prompt_tokens_details"]["cached_tokens"]}}})))
        << more;
  }
}

// Cut off inside a character an answer ends before it, in both endpoints and however it is sent.
TEST(Completions, NoHalfCharacters) {
  const Talk talk;
  const std::string whole = "a\U0001F600b\U0001F680";
  size_t cut_inside = 0;
  for (int tokens = 1; tokens <= 5; ++tokens) {
    const std::string more = R"("seed":3,"choice":[")" + whole + R"("],"max_tokens":)" + std::to_string(tokens);
    const OrderedJson plain = talk.ask(kPath, R"({"prompt":"x",)" + more + "}");
    const std::string text = plain["choices"][0]["text"];
    EXPECT_EQ(whole.compare(0, text.size(), text), 0) << text;
    EXPECT_EQ(plain["usage"]["completion_tokens"], tokens);
    std::string streamed;
    for (const OrderedJson& event : talk.stream(kPath, R"({"prompt":"x","stream":true,)" + more + "}")) {
      if (!event["choices"].empty()) streamed += event["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(streamed, text);
    const OrderedJson chat = talk.chat(R"({"messages":[{"role":"user","content":"x"}],)" + more + "}");
    EXPECT_EQ(chat["choices"][0]["message"]["content"].get<std::string>(), text);
    EXPECT_EQ(chat["usage"]["completion_tokens"], tokens);
    cut_inside += text == "a" ? 1 : 0;
  }
  EXPECT_GT(cut_inside, 1u);
}

TEST(Completions, EchoBeginsWithThePrompt) {
  const Talk talk;
  const std::string text = talk.ask(kPath, completion(R"("A ship is")", R"(,"echo":true)"))["choices"][0]["text"];
  EXPECT_TRUE(text.starts_with("A ship is")) << text;
  EXPECT_GT(text.size(), 12u);
}

TEST(Completions, ErrorsNameTheMember) {
  const Talk talk(Talk::engine_options(), Talk::service_options(), false);
  const struct {
    std::string body, param;
  } cases[] = {
      {"{}", "prompt"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[true]})", "prompt[0]"},
      {R"({"prompt":[1,"a"]})", "prompt[1]"},
      {R"({"prompt":["a",5]})", "prompt[1]"},
      {R"({"prompt":[4096]})", "prompt[0]"},
      {R"({"prompt":[[1],[-1]]})", "prompt[1][0]"},
      {R"({"prompt":"","add_special_tokens":false})", "prompt"},
      {R"({"prompt":"a","suffix":"b"})", "suffix"},
      {R"({"prompt":"a","echo":true,"logprobs":1})", "echo"},
      {R"({"prompt":"a","best_of":2})", "best_of"},
      {R"({"prompt":"a","logprobs":21})", "logprobs"},
      {R"({"prompt":["a","b","c","d","e","f","g","h","i"],"n":16})", "n"},
      {R"({"prompt":"a","messages":[]})", "messages"},
      {R"({"prompt":"a","max_tokens":2000})", "max_tokens"},
  };
  for (const auto& c : cases) {
    const auto reply = talk.post(kPath, c.body);
    EXPECT_EQ(reply->status(), 400) << c.body;
    EXPECT_EQ(reply->json()["error"]["param"], c.param) << reply->body();
    EXPECT_EQ(reply->json()["error"]["type"], "invalid_request_error");
  }
}

TEST(Tokens, ThereAndBack) {
  const Talk talk;
  const std::string text = "Ships, naïve 船 and 🦆.";
  const OrderedJson body = {{"prompt", text}, {"return_token_strs", true}, {"add_special_tokens", false}};
  const OrderedJson tokens = talk.ask("/tokenize", body.dump());
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 1024);
  EXPECT_EQ(talk.ask("/detokenize", OrderedJson({{"tokens", tokens["tokens"]}}).dump())["prompt"], text);
  EXPECT_EQ(talk.ask("/detokenize", R"({"tokens":[300.0]})"), talk.ask("/detokenize", R"({"tokens":[300]})"));
  // A conversation has as many tokens as its request is billed.
  const std::string conversation = R"({"messages":[{"role":"user","content":"Hello!"}])";
  EXPECT_EQ(talk.ask("/tokenize", conversation + "}")["count"],
            talk.chat(conversation + R"(,"max_tokens":1})")["usage"]["prompt_tokens"]);
  for (const auto& [path, bad, param] : {std::tuple{"/tokenize", R"({"prompt":5})", "prompt"},
                                         {"/tokenize", R"({})", "prompt"},
                                         {"/tokenize", R"({"prompt":"a","x":1})", "x"},
                                         {"/tokenize", R"({"messages":[]})", "messages"},
                                         {"/detokenize", R"({"tokens":["a"]})", "tokens[0]"},
                                         {"/detokenize", R"({"tokens":[4096]})", "tokens[0]"},
                                         {"/detokenize", R"({"tokens":[1.5]})", "tokens[0]"},
                                         {"/detokenize", R"({"tokens":[1e300]})", "tokens[0]"}}) {
    const auto reply = talk.post(path, bad);
    EXPECT_EQ(reply->status(), 400) << bad;
    EXPECT_EQ(reply->json()["error"]["param"], param) << reply->body();
  }
}

// All that decides about a chat's prompt is counted by /tokenize as the chat does.
TEST(Tokens, OfAConversationAreItsPrompt) {
  const Talk talk;
  const std::string messages = R"("messages":[{"role":"user","content":"What is a ship?"}])";
  std::set<int> counts;
  for (const std::string more :
       {"", R"(,"reasoning_effort":"high")", R"(,"reasoning_effort":90)",
        R"(,"response_format":{"type":"json_object"})",
        R"(,"response_format":{"type":"json_schema","json_schema":{"name":"r","schema":{"type":"object"}}})",
        R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")", R"(,"choice":["a","b"])"}) {
    const int count = talk.ask("/tokenize", "{" + messages + more + "}")["count"];
    EXPECT_EQ(talk.chat("{" + messages + more + R"(,"max_tokens":1})")["usage"]["prompt_tokens"], count) << more;
    counts.insert(count);
  }
  EXPECT_GE(counts.size(), 4u);
}

TEST(Models, ListAndOne) {
  const Talk talk;
  auto reply = talk.send("GET", "/v1/models", "");
  EXPECT_EQ(reply->json()["object"], "list");
  EXPECT_EQ(reply->json()["data"][0]["id"], "small");
  EXPECT_EQ(talk.send("GET", "/v1/models/small", "")->json()["object"], "model");
  // As Anthropic's clients read them.
  const Headers version{{"anthropic-version", "2023-06-01"}};
  const OrderedJson list = talk.send("GET", "/v1/models", "", "", version)->json();
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][0]["created_at"].get<std::string>().size(), 20u) << list.dump();
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], "small");
  EXPECT_EQ(talk.send("GET", "/v1/models/small", "", "", version)->json(), list["data"][0]);
  EXPECT_EQ(talk.send("GET", "/v1/models/gpt-4", "", "", version)->json()["type"], "error");
  reply = talk.send("GET", "/v1/models/gpt-4", "");
  EXPECT_EQ(reply->status(), 404);
  EXPECT_EQ(reply->json()["error"]["code"], "model_not_found");
  EXPECT_EQ(reply->json()["error"]["param"], "model");
}

}  // namespace
}  // namespace mdi
