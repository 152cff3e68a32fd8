// A conversation that a client sends back, with its tools, calls and reasoning, finds all that it had computed before:
// the hit is the whole of the turn before, prompt and answer.
//
// The rule of the cache (docs/architecture.md, "The cache"): a snapshot is taken at an answer's end, at any position,
// of all tokens that were run. The last generated one, end-of-sentence, was not: so the hit is prompt + answer - 1.
#include "talk.h"

namespace mdi {
namespace {

using testing::Talk;

constexpr const char* kChat = "/v1/chat/completions";

OrderedJson weather_tool() {
  return parse_ordered_json(
      R"({"type":"function","function":{"name":"get_weather","description":"The weather of a place","strict":true,)"
      R"("parameters":{"type":"object","properties":{"place":{"type":"string","maxLength":20},"days":{"type":"integer",)"
      R"("minimum":1,"maximum":9}},"required":["place","days"],"additionalProperties":false}}})",
      "tool");
}

struct Turn {
  OrderedJson message;
  int prompt = 0, answer = 0, cached = 0;
  std::string finish;
};

// One turn as a client runs it: the assistant's message as it came, to be appended to the conversation.
Turn plain_turn(const Talk& talk, const OrderedJson& body) {
  const OrderedJson a = talk.chat(body.dump());
  Turn turn;
  turn.message = a["choices"][0]["message"];
  turn.finish = a["choices"][0]["finish_reason"];
  turn.prompt = a["usage"]["prompt_tokens"];
  turn.answer = a["usage"]["completion_tokens"];
  turn.cached = a["usage"]["prompt_tokens_details"]["cached_tokens"];
  return turn;
}

Turn streamed_turn(const Talk& talk, OrderedJson body) {
  body["stream"] = true;
  body["stream_options"]["include_usage"] = true;
  Turn turn;
  std::string content, reasoning;
  OrderedJson calls = OrderedJson::array();
  for (const OrderedJson& event : talk.stream(kChat, body.dump())) {
    if (event["usage"].is_object()) {
      turn.prompt = event["usage"]["prompt_tokens"];
      turn.answer = event["usage"]["completion_tokens"];
      turn.cached = event["usage"]["prompt_tokens_details"]["cached_tokens"];
    }
    for (const OrderedJson& choice : event["choices"]) {
      const OrderedJson& delta = choice["delta"];
      if (choice["finish_reason"].is_string()) turn.finish = choice["finish_reason"];
      if (delta.contains("content")) content += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content")) reasoning += delta["reasoning_content"].get<std::string>();
      if (!delta.contains("tool_calls")) continue;
      for (OrderedJson call : delta["tool_calls"]) {
        const auto index = call["index"].get<size_t>();
        call.erase("index");
        if (index == calls.size()) {
          calls.push_back(call);
        } else {
          calls[index]["function"]["arguments"].get_ref<std::string&>() +=
              call["function"]["arguments"].get<std::string>();
        }
      }
    }
  }
  turn.message = {{"role", "assistant"}, {"content", content}};
  if (!reasoning.empty()) turn.message["reasoning_content"] = reasoning;
  if (!calls.empty()) turn.message["tool_calls"] = calls;
  return turn;
}

using RunTurn = Turn (*)(const Talk&, const OrderedJson&);
Turn run_streamed(const Talk& talk, const OrderedJson& body) { return streamed_turn(talk, body); }

// Clients respell arguments: what counts is their value.
void respell_arguments(OrderedJson& message) {
  if (!message.contains("tool_calls")) return;
  for (OrderedJson& call : message["tool_calls"]) {
    OrderedJson& arguments = call["function"]["arguments"];
    arguments = parse_ordered_json(arguments.get<std::string>(), "arguments").dump();
  }
}

void expect_whole_hits(RunTurn run, bool thinking) {
  EngineOptions engine = Talk::engine_options();
  engine.max_length = 4096;        // the tools alone have some 400 tokens
  engine.snapshot_min_tokens = 1;  // short answers, too, are kept: what is asked here is whether they are found
  const Talk talk(std::move(engine));
  OrderedJson body;
  body["tools"] = OrderedJson::array({weather_tool()});
  body["temperature"] = 0.7;
  body["seed"] = 11;
  body["max_tokens"] = 400;
  body["reasoning_effort"] = thinking ? OrderedJson("high") : OrderedJson("none");
  body["messages"] = {{{"role", "system"}, {"content", "You answer questions about the weather of ships."}},
                      {{"role", "user"}, {"content", "What is the weather at the harbour?"}}};
  int expected = 0;
  for (int turn_number = 0; turn_number < 3; ++turn_number) {
    // The bundled model cannot call by itself: the grammar has it do so in every other turn.
    const bool calls = turn_number % 2 == 0;
    body["tool_choice"] = calls ? "required" : "none";
    Turn turn = run(talk, body);
    // The bundled model may reason for too long to get to its call: then another answer is drawn.
    for (int again = 0; calls && turn.finish == "length" && again < 10; ++again) {
      body["seed"] = body["seed"].get<int>() + 1;
      const int cached = turn.cached;
      turn = run(talk, body);
      EXPECT_GE(turn.cached, cached);
      turn.cached = cached;  // later ones find the prompt of the first
    }
    EXPECT_EQ(turn.finish, calls ? "tool_calls" : turn.finish);
    EXPECT_EQ(turn.cached, expected) << "turn " << turn_number << ": " << turn.message.dump();
    ASSERT_GT(turn.answer, 0);
    // Cut off, the last token has been run for nothing more than an end-of-sentence has.
    expected = turn.prompt + turn.answer - 1;
    OrderedJson message = turn.message;
    respell_arguments(message);
    body["messages"].push_back(message);
    if (calls) {
      ASSERT_TRUE(message.contains("tool_calls"));
      for (const OrderedJson& call : message["tool_calls"]) {
        body["messages"].push_back(
            {{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "Fair, with a light wind from the west."}});
      }
    } else {
      body["messages"].push_back({{"role", "user"}, {"content", "And tomorrow, will it rain on the sea?"}});
    }
  }
  talk.expect_nothing_held();
}

TEST(Conversation, PlainTurnsHitTheWholeTurnBefore) { expect_whole_hits(plain_turn, false); }
TEST(Conversation, PlainTurnsWithReasoning) { expect_whole_hits(plain_turn, true); }
TEST(Conversation, StreamedTurnsHitTheWholeTurnBefore) { expect_whole_hits(run_streamed, false); }
TEST(Conversation, StreamedTurnsWithReasoning) { expect_whole_hits(run_streamed, true); }

// One short answer after the other, the next question behind it, each hit as long as prompt and answer before it.
class ShortAnswers {
 public:
  explicit ShortAnswers(const Talk& talk) : talk_(talk) {
    body_["messages"] = OrderedJson::array();
    body_["temperature"] = 0;
  }

  // Returns the number of tokens that the answer was made of.
  int ask(const std::string& question, const std::string& answer, const OrderedJson& also) {
    OrderedJson body = body_;
    body["choice"] = OrderedJson::array({answer});
    body.update(also);
    body_["messages"].push_back({{"role", "user"}, {"content", question}});
    body["messages"] = body_["messages"];
    const Turn turn = plain_turn(talk_, body);
    EXPECT_EQ(turn.cached, expected_) << body.dump();
    expected_ = turn.prompt + turn.answer - 1;
    body_["messages"].push_back(turn.message);
    EXPECT_EQ(turn.message["content"], answer.substr(0, turn.message["content"].get<std::string>().size()));
    return turn.answer;
  }

 private:
  const Talk& talk_;
  OrderedJson body_;
  int expected_ = 0;
};

EngineOptions keeping_all() {
  EngineOptions engine = Talk::engine_options();
  engine.snapshot_min_tokens = 1;
  return engine;
}

// The same words at different places of several conversations, made of different tokens.
TEST(Conversation, EqualAnswersOfDifferentTokens) {
  const Talk talk(keeping_all());
  const OrderedJson any = OrderedJson::object();
  OrderedJson split;  // without the tokens that the answer is usually made of
  for (const int32_t id : talk.service->tokenizer().encode("Yes, it is.", Markers::kText)) {
    if (talk.service->tokenizer().bytes(id).size() > 1) split["logit_bias"][std::to_string(id)] = -100;
  }
  ShortAnswers one(talk), two(talk);
  const int usual = one.ask("Is this the first conversation, the one about ships?", "Yes, it is.", any);
  EXPECT_GT(one.ask("And is it a fair day?", "Yes, it is.", split), usual);
  two.ask("Then this must be the second conversation, about harbours.", "Yes, it is.", split);
  one.ask("Is it still?", "Yes, it is.", any);
  two.ask("Is it warm?", "Yes, it is.", any);
  one.ask("And now?", "No.", any);
  two.ask("And now?", "Yes, it is.", split);
  one.ask("Good.", "Yes, it is.", split);
  two.ask("Good.", "Yes, it is.", any);
  talk.expect_nothing_held();
}

// Cut off within what may be the beginning of a call, or of a character, the client gets less than was generated.
TEST(Conversation, AnswersThatAreCutAnywhere) {
  const Talk talk(keeping_all());
  const std::string answer = "A line.\n\n<b>\n\n⛵ and 船";
  for (int length = 1; length < 16; ++length) {
    ShortAnswers talk_of(talk);
    const OrderedJson cut = {{"max_tokens", length}};
    talk_of.ask("What is it, number " + std::to_string(length) + "?", answer, cut);
    talk_of.ask("Go on.", answer, cut);
    talk_of.ask("Go on.", answer, cut);
  }
  talk.expect_nothing_held();
}

// The last token generated, which has not been run, is the one that made the stop string whole.
TEST(Conversation, AnswersThatEndByAStopString) {
  const Talk talk(keeping_all());
  const OrderedJson stop = {{"stop", {"#"}}};
  ShortAnswers one(talk), two(talk);
  one.ask("Is this the first conversation, the one about ships?", "Yes, it is.#No.", stop);
  two.ask("Then this must be the second conversation, about harbours.", "Yes, it is #here.", stop);
  one.ask("Is it still?", "Yes, it is. #", stop);
  two.ask("Is it warm?", "#", stop);
  one.ask("Good.", "Good.", stop);
  two.ask("Good.", "Good.", stop);
  talk.expect_nothing_held();
}

TEST(Conversation, AStopStringWithinATokenLeavesTheTextBeforeIt) {
  const Tokenizer& tokenizer = *testing::small_model().tokenizer;
  const std::vector<int32_t> all = tokenizer.encode("The ship ⛵ sails across the harbour, by night", Markers::kText);
  // A token that ends as nothing before it does.
  std::vector<int32_t> ids;
  std::string before, last;
  for (const int32_t id : all) {
    before += last;
    last = tokenizer.bytes(id);
    ids.push_back(id);
    if (ids.size() > 4 && last.size() >= 3 && (before + last).find(last.substr(2)) == before.size() + 2) break;
  }
  ASSERT_LT(ids.size(), all.size()) << "no such token";
  ReplayMemory memory;
  const TurnPlace place = place_behind(kFirstPlace, text_message(Role::kUser, "What does it do?"));
  Answer answer(tokenizer, &memory, {.place = place, .stop = {last.substr(2)}});
  std::string content;
  for (const int32_t id : ids) {
    Event event;
    event.tokens = {{.id = id, .logprobs = {}}};
    const std::optional<AnswerPart> part = answer.take(event);
    if (!part) continue;
    for (const ChatEvent& shown : part->events) content += shown.text;
    if (part->finish) break;
  }
  ASSERT_TRUE(answer.finished());
  const auto turn = memory.find(place, text_message(Role::kAssistant, content), false);
  ASSERT_NE(turn, nullptr) << content;
  EXPECT_EQ(turn->rest, std::vector<int32_t>(ids.begin(), ids.end() - 1));
  EXPECT_EQ(turn->tail, last.substr(0, 2));
}

// With reasoning, what is content is seen here and not in the engine: a sample that a stop string ends runs no further.
TEST(Conversation, AStopStringEndsOneOfSeveralSamples) {
  const Talk talk;
  OrderedJson body = {{"messages", {{{"role", "user"}, {"content", "Tell me about the sea."}}}},
                      {"n", 2},
                      {"temperature", 1},
                      {"reasoning_effort", "low"},
                      {"ignore_eos", true},
                      {"max_tokens", 500}};
  std::string cut, other, stop;
  for (int seed = 1; seed <= 20 && stop.empty(); ++seed) {
    body["seed"] = seed;
    const OrderedJson whole = talk.chat(body.dump());
    if (whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 200) continue;
    cut = whole["choices"][0]["message"]["content"];
    other = whole["choices"][1]["message"]["content"];
    for (size_t at = 8; at < 60 && at + 6 < cut.size() && stop.empty(); ++at) {
      const std::string words = cut.substr(at, 6);
      const bool plain = std::all_of(words.begin(), words.end(), [](char c) { return c >= ' ' && c <= '~'; });
      if (plain && cut.find(words) == at && other.find(words) == std::string::npos) stop = words;
    }
  }
  ASSERT_FALSE(stop.empty()) << "the model reasons for too long";
  body["stop"] = {stop};
  const int64_t before = talk.service->engine().metrics().generated_tokens;
  const OrderedJson answer = talk.chat(body.dump());
  talk.expect_nothing_held();
  const int64_t generated = talk.service->engine().metrics().generated_tokens - before;
  EXPECT_EQ(answer["choices"][0]["message"]["content"], cut.substr(0, cut.find(stop)));
  EXPECT_EQ(answer["choices"][1]["message"]["content"], other);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(generated,
            900);  // without an end 1000; the reasoning and the cut are some 250, and its end takes a few steps
}

// Equal conversations of different tenants share nothing.
TEST(Conversation, SaltsSeparate) {
  const Talk talk;
  const auto cached = [&](const char* salt) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "The ship sails on the sea. ";
    OrderedJson body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 2}, {"cache_salt", salt}};
    return talk.chat(body.dump())["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("a"), 100);
  EXPECT_EQ(cached("b"), 0);
}

}  // namespace
}  // namespace mdi
