// Conversations to prompts: the format's letters, and that nobody but the format makes control tokens.
#include "text/chat_render.h"

#include <gtest/gtest.h>

#include <random>

#include "chat_check.h"
#include "support.h"
#include "text/chat_replay.h"

namespace mdi {
namespace {

const std::string kEffort =
    "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
const std::string kBos = marker::kBos, kSys = marker::kSystem, kUsr = marker::kUser, kAst = marker::kAssistant,
                  kEos = marker::kEos;

std::vector<ChatMessage> messages_of(const char* json, const char* tools = "null") {
  return parse_messages(parse_ordered_json(json, "test"), parse_ordered_json(tools, "test"));
}

// The prompt as the reference would write it, markers spelled out.
std::string prompt_text(std::span<const ChatMessage> messages, const ChatOptions& options) {
  std::string text;
  for (const PromptPiece& piece : render_chat(messages, options).pieces) text += piece.text;
  return text;
}

// The reference encodes that text with markers recognised; without markers in what people wrote the two must agree.
std::string checked_prompt(const char* json, const ChatOptions& options, const char* tools = "null") {
  const auto messages = messages_of(json, tools);
  const std::string text = prompt_text(messages, options);
  EXPECT_EQ(encode_chat(test::v41_tokenizer(), messages, options).ids, test::v41_tokenizer().encode(text)) << text;
  return text;
}

constexpr ChatOptions chat_mode() {
  ChatOptions options;
  options.thinking = false;
  return options;
}

TEST(ChatRender, TheExamplesOfTheFormat) {
  const char* hi = R"([{"role": "user", "content": "hi"}])";
  const char* system = R"([{"role": "system", "content": "You are X."}, {"role": "user", "content": "hi"}])";
  EXPECT_EQ(checked_prompt(hi, chat_mode()), kBos + kUsr + "hi" + kAst + "</think>");
  EXPECT_EQ(checked_prompt(system, chat_mode()), kBos + kSys + "You are X." + kUsr + "hi" + kAst + "</think>");
  EXPECT_EQ(checked_prompt(system, {}), kBos + kSys + kEffort + "You are X." + kUsr + "hi" + kAst + "<think>");
  EXPECT_EQ(checked_prompt(hi, {}), kBos + kSys + kEffort + kUsr + "hi" + kAst + "<think>");
  EXPECT_TRUE(render_chat(messages_of(hi), {}).reasoning);
  EXPECT_FALSE(render_chat(messages_of(hi), chat_mode()).reasoning);
}

TEST(ChatRender, ReasoningIsDroppedBeforeTheLastUserUnlessThereAreTools) {
  const char* talk =
      R"([{"role": "user", "content": "1"}, {"role": "assistant", "reasoning_content": "r", "content": "a"},
                         {"role": "user", "content": "2"}])";
  EXPECT_EQ(checked_prompt(talk, {}),
            kBos + kSys + kEffort + kUsr + "1" + kAst + "</think>a" + kEos + kUsr + "2" + kAst + "<think>");
  ChatOptions keep;
  keep.drop_thinking = false;
  const std::string kept = kUsr + "1" + kAst + "<think>r</think>a" + kEos + kUsr + "2" + kAst + "<think>";
  EXPECT_EQ(checked_prompt(talk, keep), kBos + kSys + kEffort + kept);
  const std::string with_tools = checked_prompt(talk, {}, R"([{"type": "function", "function": {"name": "f"}}])");
  EXPECT_EQ(with_tools.substr(with_tools.size() - kept.size()), kept);
  EXPECT_EQ(checked_prompt(talk, chat_mode()),
            kBos + kUsr + "1" + kAst + "</think>a" + kEos + kUsr + "2" + kAst + "</think>");
  // An answer after the last user keeps it, and the turn may stay open.
  EXPECT_EQ(checked_prompt(R"([{"role": "user", "content": "1"},
                               {"role": "assistant", "reasoning_content": "r", "content": "a", "wo_eos": true}])",
                           {}),
            kBos + kSys + kEffort + kUsr + "1" + kAst + "<think>r</think>a");
  // A later system message counts as a user's.
  EXPECT_EQ(checked_prompt(
                R"([{"role": "user", "content": "1"}, {"role": "assistant", "reasoning_content": "r", "content": "a"},
                               {"role": "system", "content": "brief"}])",
                {}),
            kBos + kSys + kEffort + kUsr + "1" + kAst + "</think>a" + kEos + kSys + "brief" + kAst + "<think>");
}

TEST(ChatRender, UsersAndToolResultsMerge) {
  EXPECT_EQ(
      checked_prompt(R"([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"},
                               {"type": "input_audio"}]}])",
                     chat_mode()),
      kBos + kUsr + "a\n\nb\n\n[Unsupported input_audio]" + kAst + "</think>");
  const char* talk = R"([
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"s\":\"x\\n<y>\",\"n\":[1,2.50,{\"k\":null}]}"}},
      {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "2", "content": "second"},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "fi"}, {"type": "text", "text": "rst"}]},
    {"role": "user", "content": "and?"}])";
  EXPECT_EQ(checked_prompt(talk, chat_mode()),
            kBos + kUsr + "go" + kAst +
                "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
                "<｜DSML｜ parameter name=\"s\" string=\"true\">x\n<y></｜DSML｜ parameter>\n"
                "<｜DSML｜ parameter name=\"n\" string=\"false\">[1, 2.5, {\"k\": null}]</｜DSML｜ parameter>\n"
                "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
                kEos + kUsr + "<tool_result>fi\n\nrst</tool_result>\n\n<tool_result>second</tool_result>\n\nand?" +
                kAst + "</think>");
}

TEST(ChatRender, ToolsFormatsTasksAndReminders) {
  const std::string prompt = checked_prompt(
      R"([{"role": "user", "content": "hi"}])", chat_mode(),
      R"([{"type": "function", "function": {"name": "f", "description": "é", "parameters": {"b": 1, "a": [true]}}},
          {"type": "function", "function": {"name": "g"}}])");
  EXPECT_EQ(prompt.rfind(kBos + kSys + "\n\n## Tools\n\nYou have access to a set of tools", 0), 0u);
  const std::string end =
      "### Available Tool Schemas\n\n"
      "{\"name\": \"f\", \"description\": \"é\", \"parameters\": {\"b\": 1, \"a\": [true]}}\n{\"name\": \"g\"}\n\n"
      "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n" +
      kUsr + "hi" + kAst + "</think>";
  EXPECT_EQ(prompt.substr(prompt.size() - end.size()), end);
  EXPECT_EQ(
      checked_prompt(R"([{"role": "system", "content": "s", "response_format": {"type": "object"}}])", chat_mode()),
      kBos + kSys +
          "s\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
          "{\"type\": \"object\"}");
  EXPECT_EQ(
      checked_prompt(
          R"([{"role": "latest_reminder", "content": "today"}, {"role": "user", "content": "u", "task": "title"}])",
          chat_mode()),
      kBos + "<｜latest_reminder｜>today" + kUsr + "u<｜title｜>");
  EXPECT_EQ(
      checked_prompt(R"([{"role": "user", "content": "u", "task": "action"},
                               {"role": "assistant", "reasoning_content": "r", "content": "search"},
                               {"role": "user", "content": "v"}])",
                     {}),
      kBos + kSys + kEffort + kUsr + "u" + kAst + "<think><｜action｜>search" + kEos + kUsr + "v" + kAst + "<think>");
}

TEST(ChatRender, ImagesArePlaceholdersInOrder) {
  const auto messages = messages_of(R"([
    {"role": "user", "content": [{"type": "text", "text": "look <｜deepseek_image｜>"}, {"type": "image_url", "image_url": {"url": "u1"}}]},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "image", "data": "d2"}]}])");
  const EncodedChat chat = encode_chat(test::v41_tokenizer(), messages, {});
  ASSERT_EQ(chat.images.size(), 2u);
  EXPECT_EQ(chat.images[0].record, R"({"type": "image_url", "image_url": {"url": "u1"}})");
  EXPECT_EQ(chat.images[1].record, R"({"type": "image", "data": "d2"})");
  EXPECT_LT(chat.images[0].position, chat.images[1].position);
  for (const auto& image : chat.images) EXPECT_EQ(chat.ids[image.position], 129264);
  EXPECT_EQ(std::count(chat.ids.begin(), chat.ids.end(), 129264), 2);  // the typed one is text
}

// Whatever stands in the text of any role, the control tokens are those of the same conversation with harmless text.
TEST(ChatRender, MarkersInTextAreNeverControlTokens) {
  const Tokenizer& tokenizer = test::v41_tokenizer();
  const auto controls = [&](const std::string& text) {
    OrderedJson json = OrderedJson::array();
    json.push_back({{"role", "system"}, {"content", text}});
    json.push_back({{"role", "user"}, {"content", text}});
    const OrderedJson call = {{"id", text},
                              {"function", {{"name", text}, {"arguments", {{text, text}, {"n", {text}}}}}}};
    json.push_back({{"role", "assistant"}, {"content", text}, {"reasoning_content", text}, {"tool_calls", {call}}});
    json.push_back({{"role", "tool"}, {"tool_call_id", text}, {"content", text}});
    json.push_back({{"role", "latest_reminder"}, {"content", text}});
    const OrderedJson tools = {{{"type", "function"}, {"function", {{"name", text}, {"description", text}}}}};
    std::vector<int32_t> ids;
    for (const int32_t id : encode_chat(tokenizer, parse_messages(json, tools), {}).ids) {
      if (id < 3 || id >= 128000) ids.push_back(id);
    }
    return ids;
  };
  const auto plain = controls("x");
  EXPECT_FALSE(plain.empty());
  for (int32_t id = 128799; id < tokenizer.size(); id += id < 128850 ? 1 : 53) {
    EXPECT_EQ(controls(std::string(tokenizer.bytes(id))), plain);
  }
  EXPECT_EQ(controls(kEos + kBos), plain);
}

TEST(ChatRender, RefusesWhatTheFormatHasNoPlaceFor) {
  const std::pair<const char*, const char*> bad[] = {
      {R"({})", "messages"},
      {R"([])", "messages"},
      {R"([3])", "messages[0]"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": "wizard", "content": "x"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"text": "x"}]}])", "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": "x", "reasoning_content": "r"}])", "messages[0].reasoning_content"},
      {R"([{"role": "user", "content": "x", "tools": [1]}])", "messages[0].tools"},
      {R"([{"role": "user", "content": "x", "task": "dance"}])", "messages[0].task"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])", "messages[0].tool_calls[0].function.name"},
      {R"([{"role": "assistant", "tool_calls": 3}])", "messages[0].tool_calls"},
      {R"([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}])",
       "message 0"},
      {R"([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}])",
       "message 0"},
  };
  for (const auto& [json, named] : bad) {
    try {
      render_chat(messages_of(json), {});
      ADD_FAILURE() << json << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).rfind(named, 0), 0u) << e.what();
    }
  }
  EXPECT_EQ(parse_effort("low"), 50);
  EXPECT_EQ(parse_effort("high"), 75);
  EXPECT_EQ(parse_effort("max"), 100);
  EXPECT_EQ(parse_effort(1), 1);
  for (const OrderedJson& value :
       {OrderedJson(0), OrderedJson(101), OrderedJson(-1), OrderedJson("xhigh"), OrderedJson(nullptr)}) {
    EXPECT_THROW(parse_effort(value), Error);
  }
  ChatOptions wild;
  wild.effort = 0;
  EXPECT_THROW(render_chat(messages_of(R"([{"role": "user", "content": "x"}])"), wild), Error);
}

ChatMessage sent_back(const ChatReply& reply) {
  ChatMessage message = text_message(Role::kAssistant, reply.content);
  message.reasoning = reply.reasoning;
  message.tool_calls = reply.tool_calls;
  return message;
}

// Splits some tokens of an encoding as a sampler might: same bytes, other ids.
std::vector<int32_t> resample(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, std::mt19937& random) {
  std::vector<int32_t> sampled;
  for (const int32_t id : ids) {
    const std::string bytes(tokenizer.bytes(id));
    const size_t middle = bytes.size() / 2;
    const bool text = id > 2 && id < 128000 && bytes.size() > 1 && valid_utf8_prefix(bytes) == bytes.size() &&
                      valid_utf8_prefix(bytes.substr(0, middle)) == middle;
    if (!text || random() % 3 != 0) {
      sampled.push_back(id);
      continue;
    }
    for (const auto& half : {bytes.substr(0, middle), bytes.substr(middle)}) {
      for (const int32_t part : tokenizer.encode(half, Markers::kText)) sampled.push_back(part);
    }
  }
  return sampled;
}

TEST(ChatRender, WhatWasGeneratedComesBackAsTheSameTokens) {
  const Tokenizer& tokenizer = test::v41_tokenizer();
  std::mt19937 random(5);
  const auto question = messages_of(R"([{"role": "user", "content": "weather?"}])",
                                    R"([{"type": "function", "function": {"name": "w"}}])");
  const std::string call =
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"w\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Zürich "
      "\"old\" town\n"
      "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"o\" string=\"false\">";
  const std::string close = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::vector<std::string> answers = {"I think so</think>It is fine today. 👍🏽", "</think>",
                                            "hm\n</think>Looking.\n" + call + "{\"k\": [1, 2]}" + close,
                                            "compact</think>" + call + "{\"k\":[1,2.50]}" + close,
                                            "a" + call + "</think>b"};
  ReplayMemory memory;
  ChatOptions options;
  options.memory = &memory;
  for (size_t a = 0; a < answers.size(); ++a) {
    for (int round = 0; round < 20; ++round) {
      const EncodedChat before = encode_chat(tokenizer, question, options);
      std::vector<int32_t> generated = tokenizer.encode(answers[a] + kEos);
      const bool canonical = round == 0;
      if (!canonical) generated = resample(tokenizer, generated, random);
      if (round == 19) generated.resize(random() % generated.size());  // cut off by a limit
      std::vector<ChatEvent> events;
      ChatParser parser(tokenizer, before.reasoning);
      for (const int32_t id : generated) parser.push(id, events);
      if (!parser.done()) parser.finish(ReplyEnd::kCut, events);
      const bool plain = canonical && a < 3;  // here text alone is enough
      if (!plain) memory.remember(before.place, parser.reply());

      auto talk = question;
      talk.push_back(sent_back(parser.reply()));
      // A client may respell the arguments.
      if (a == 3 && parser.reply().complete) {
        auto& arguments = talk.back().tool_calls.at(0).arguments;
        arguments = parse_ordered_json(arguments, "test").dump(2);
      }
      talk.push_back(text_message(Role::kUser, "thanks"));
      const EncodedChat after = encode_chat(tokenizer, talk, options);
      std::vector<int32_t> expected = before.ids;
      expected.insert(expected.end(), generated.begin(), generated.end());
      ASSERT_GE(after.ids.size(), expected.size()) << answers[a];
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), after.ids.begin())) << answers[a] << " round " << round;
    }
  }
}

TEST(ReplayMemory, IsBoundedAndForgetsTheOldest) {
  ReplayMemory memory(4000);
  const auto reply = [](int i) {
    ChatReply r;
    r.content = "answer " + std::to_string(i);
    r.reasoning = "thought";
    r.rest_ids = {i};
    return r;
  };
  for (int i = 0; i < 100; ++i) {
    memory.remember(kFirstPlace, reply(i));
    EXPECT_LE(memory.bytes(), 4000u);
    EXPECT_NE(memory.find(kFirstPlace, sent_back(reply(i)), true), nullptr);
    EXPECT_NE(memory.find(kFirstPlace, sent_back(reply(std::max(0, i - 2))), false), nullptr);
  }
  EXPECT_EQ(memory.find(kFirstPlace, sent_back(reply(1)), false), nullptr);
  auto other = sent_back(reply(99));
  other.reasoning = "another thought";
  EXPECT_EQ(memory.find(kFirstPlace, other, true), nullptr);
  EXPECT_EQ(memory.find(kFirstPlace, other, false)->rest, std::vector<int32_t>{99});
  ChatReply huge = reply(1);
  huge.content.assign(5000, 'x');
  memory.remember(kFirstPlace, huge);
  EXPECT_EQ(memory.find(kFirstPlace, sent_back(huge), true), nullptr);
}

// "Yes." is given often, and not always by the same tokens.
TEST(ReplayMemory, TellsEqualAnswersApartByTheirPlace) {
  ReplayMemory memory;
  const auto yes = [](int32_t id, std::string reasoning = "") {
    ChatReply r;
    r.content = "Yes.";
    r.reasoning = std::move(reasoning);
    r.rest_ids = {id};
    return r;
  };
  const auto found = [&memory](TurnPlace place, const ChatMessage& message, bool match_reasoning = false) {
    const auto turn = memory.find(place, message, match_reasoning);
    return turn == nullptr ? -1 : turn->rest.at(0);
  };
  const ChatMessage asked = text_message(Role::kUser, "Is it?"), answered = text_message(Role::kAssistant, "Yes.");
  const TurnPlace first = place_behind(kFirstPlace, asked);
  const TurnPlace second = place_behind(place_behind(first, answered), asked);
  const TurnPlace other = place_behind(kFirstPlace, text_message(Role::kUser, "Was it?"));
  ASSERT_NE(first, second);
  ASSERT_NE(first, other);
  memory.remember(first, yes(1));
  memory.remember(second, yes(2));
  EXPECT_EQ(found(first, answered), 1);
  EXPECT_EQ(found(second, answered), 2);
  EXPECT_EQ(found(other, answered), 2);  // a history that was shortened: the last of equal text

  // What clients may change does not change the place; what the model saw does.
  ChatMessage thought = answered;
  thought.reasoning = "hm";
  EXPECT_EQ(place_behind(first, thought), place_behind(first, answered));
  ChatMessage system = text_message(Role::kSystem, "Is it?");
  EXPECT_NE(place_behind(kFirstPlace, system), first);
  const TurnPlace without = place_behind(kFirstPlace, system);
  system.tools = {"{}"};
  EXPECT_NE(place_behind(kFirstPlace, system), without);

  // Two answers at one place: the reasoning tells them apart, and without it the later one is found.
  memory.remember(second, yes(3, "hm"));
  EXPECT_EQ(found(second, thought, true), 3);
  EXPECT_EQ(found(second, answered, true), 2);
  EXPECT_EQ(found(second, answered), 3);

  // A clipped answer is known by its place, not by its text alone.
  ChatReply clipped = yes(4);
  clipped.content = "Yes";
  clipped.clipped = true;
  memory.remember(first, clipped);
  EXPECT_EQ(found(first, text_message(Role::kAssistant, "Yes")), 4);
  EXPECT_EQ(found(other, text_message(Role::kAssistant, "Yes")), -1);
}

}  // namespace
}  // namespace mdi
