// Generated answers to reasoning, content and tool calls: every way to cut one up, and what models get wrong.
#include "text/chat_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "chat_check.h"
#include "support.h"
#include "text/chat_render.h"

namespace mdi {
namespace {

using test::parse_ids;
using test::parse_text;
using test::Parsed;

const std::string kEos = marker::kEos;

// A block as the format writes it; parameters are (name, is a string, value).
struct Parameter {
  std::string name;
  bool string;
  std::string value;
};
std::string call_text(const std::string& name, const std::vector<Parameter>& parameters) {
  std::string text = "<｜DSML｜ invoke name=\"";
  text += name;
  text += "\">\n";
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (i > 0) text += '\n';
    text += "<｜DSML｜ parameter name=\"";
    text += p.name;
    text += p.string ? "\" string=\"true\">" : "\" string=\"false\">";
    text += p.value;
    text += "</｜DSML｜ parameter>";
  }
  text += "\n</｜DSML｜ invoke>";
  return text;
}
std::string block_text(const std::vector<std::string>& calls) {
  std::string text = "\n\n<｜DSML｜ calls>\n";
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) text += '\n';
    text += calls[i];
  }
  text += "\n</｜DSML｜ calls>";
  return text;
}

ChatReply reply_of(const std::string& text, bool reasoning = false, ReplyEnd end = ReplyEnd::kStop) {
  Parsed parsed = parse_text(text, reasoning, end);
  EXPECT_TRUE(test::events_make(parsed.events, parsed.reply)) << text;
  return parsed.reply;
}

TEST(ChatParser, ReadsReasoningContentAndCalls) {
  const std::string text =
      "Let me look.\n\n</think>Here:" +
      block_text({call_text("get_weather",
                            {{"city", true, "東京 \"x\"\n"}, {"days", false, "3"}, {"o", false, "{\"a\": [1]}"}}),
                  call_text("now", {})}) +
      kEos;
  const ChatReply reply = reply_of(text, true);
  EXPECT_EQ(reply.reasoning, "Let me look.\n\n");
  EXPECT_EQ(reply.content, "Here:");
  ASSERT_EQ(reply.tool_calls.size(), 2u);
  EXPECT_EQ(reply.tool_calls[0].name, "get_weather");
  EXPECT_EQ(reply.tool_calls[0].arguments, R"({"city": "東京 \"x\"\n", "days": 3, "o": {"a": [1]}})");
  EXPECT_EQ(reply.tool_calls[1].name, "now");
  EXPECT_EQ(reply.tool_calls[1].arguments, "{}");
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.problem, "");
}

TEST(ChatParser, WhatOnlyLooksLikeATagIsText) {
  const std::string text =
      "\n\n< calls \n\n<｜DSML｜ call\n<｜DSML｜ calls ｜DSML｜ </think> <think>\n\n\n<tool_result>\n\n";
  EXPECT_EQ(reply_of(text + kEos).content, text);
  const std::string value =
      "</｜DSML｜ invoke> <｜DSML｜ parameter name=\"x\" string=\"true\"> </｜DSML｜ param </think> \n\n<";
  const ChatReply reply = reply_of("a\n" + block_text({call_text("f", {{"v", true, value}})}) + kEos);
  EXPECT_EQ(reply.content, "a\n");
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(reply.tool_calls[0].arguments), (nlohmann::json{{"v", value}}));
  EXPECT_EQ(reply.problem, "");
  // Nothing ends the reasoning but </think>.
  const std::string thought = "maybe" + block_text({call_text("f", {})});
  EXPECT_EQ(reply_of(thought + kEos, true).reasoning, thought);
}

TEST(ChatParser, TheEndOfAnAnswerIsNotLost) {
  for (const char* tail : {"\n", "\n\n", "\n\n<", " <", "</", "</thin", "<｜end▁of"}) {
    EXPECT_EQ(reply_of(std::string("x") + tail + kEos).content, std::string("x") + tail);
    EXPECT_EQ(reply_of(std::string("x") + tail, false, ReplyEnd::kStop).content, std::string("x") + tail);
    const std::string text = block_text({call_text("f", {{"v", true, std::string("x") + tail}})}) + kEos;
    const ChatReply reply = reply_of(text);
    ASSERT_EQ(reply.tool_calls.size(), 1u);
    EXPECT_EQ(nlohmann::json::parse(reply.tool_calls[0].arguments)["v"], std::string("x") + tail);
  }
  // Cut off, a beginning of a tag is not shown.
  EXPECT_EQ(reply_of("x\n\n<｜DSML｜ cal", false, ReplyEnd::kCut).content, "x");
  EXPECT_EQ(reply_of("x\n\n<｜DSML｜ cal", false, ReplyEnd::kStop).content, "x");
  EXPECT_TRUE(reply_of("x</thi", true, ReplyEnd::kCut).reasoning == "x");
  // The model stopped inside a call: the arguments are JSON all the same.
  const ChatReply reply = reply_of(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"v\" string=\"true\">ab" + kEos);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].arguments, R"({"v": "ab"})");
  EXPECT_NE(reply.problem, "");
}

struct Malformed {
  const char* block;  // between the opening and the closing tag of the calls
  std::vector<std::string> names;
  std::vector<std::string> arguments;
};

TEST(ChatParser, MalformedCallsGiveWhatCanBeRead) {
  const Malformed cases[] = {
      // A value that is no JSON goes on as it is: the client sees what the model wrote.
      {"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">tru</｜DSML｜ "
       "parameter>\n</｜DSML｜ invoke>",
       {"f"},
       {R"({"a": tru})"}},
      {"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">1</｜DSML｜ parameter>\n"
       "<｜DSML｜ parameter name=\"a\" string=\"true\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>",
       {"f"},
       {R"({"a": "1"})"}},
      {"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>",
       {"f"},
       {R"({"a": "1"})"}},
      {"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter a=1>1</｜DSML｜ parameter>\n</｜DSML｜ invoke>",
       {"f"},
       {"{}"}},
      {"<｜DSML｜ invoke f>\n<｜DSML｜ parameter name=\"a\" string=\"true\">1</｜DSML｜ parameter>\n</｜DSML｜ "
       "invoke>\n"
       "<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>",
       {"g"},
       {"{}"}},
      {"<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>", {"f", "g"}, {"{}", "{}"}},
      {"<｜DSML｜ invoke name=\"f\">\n", {"f"}, {"{}"}},
      {"noise <｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke> noise", {"f"}, {"{}"}},
  };
  for (const Malformed& c : cases) {
    const ChatReply reply = reply_of("hi\n\n<｜DSML｜ calls>\n" + std::string(c.block) + "\n</｜DSML｜ calls>" + kEos);
    EXPECT_EQ(reply.content, "hi");
    EXPECT_NE(reply.problem, "") << c.block;
    ASSERT_EQ(reply.tool_calls.size(), c.names.size()) << c.block;
    for (size_t i = 0; i < c.names.size(); ++i) {
      EXPECT_EQ(reply.tool_calls[i].name, c.names[i]);
      EXPECT_EQ(reply.tool_calls[i].arguments, c.arguments[i]);
    }
  }
  EXPECT_NE(reply_of(block_text({call_text("f", {})}) + " and more" + kEos).problem, "");
}

// Random answers: pieces of tags, tags in wrong places, text of all kinds, and sometimes all of it right.
std::string random_answer(std::mt19937& random) {
  static const std::vector<std::string> parts = {"\n",
                                                 "\n\n",
                                                 "<",
                                                 "</",
                                                 "｜DSML｜",
                                                 " calls",
                                                 ">\n",
                                                 ">",
                                                 " invoke",
                                                 " parameter",
                                                 " name=\"f\"",
                                                 " name=\"",
                                                 "\">",
                                                 "\"",
                                                 " string=\"true\">",
                                                 "\" string=\"false\">",
                                                 "</think>",
                                                 "<think>",
                                                 "\n\n<｜DSML｜ calls>\n",
                                                 "\n</｜DSML｜ calls>",
                                                 "<｜DSML｜ invoke name=\"f\">\n",
                                                 "\n</｜DSML｜ invoke>",
                                                 "<｜DSML｜ parameter name=\"a\" string=\"true\">",
                                                 "<｜DSML｜ parameter name=\"b\" string=\"false\">",
                                                 "</｜DSML｜ parameter>",
                                                 "x",
                                                 "héllo",
                                                 "東京",
                                                 "👍🏽",
                                                 "{\"a\": 1}",
                                                 "3"};
  if (random() % 3 == 0) {
    return "think\n</think>é\n" +
           block_text({call_text("f", {{"a", true, parts[random() % parts.size()]}, {"b", false, "[1, \"é\"]"}}),
                       call_text("g", {{"c", true, "\n\n</" + parts[random() % parts.size()]}})}) +
           (random() % 2 == 0 ? kEos : "");
  }
  std::string text;
  for (auto n = random() % 24; n > 0; --n) text += parts[random() % parts.size()];
  return text;
}

TEST(ChatParser, TextIsTheSameAtEverySplitAndABeginningAtEveryCut) {
  std::mt19937 random(3);
  for (int round = 0; round < 150; ++round) {
    const std::string text = random_answer(random);
    const bool reasoning = random() % 2 == 0;
    const ChatReply whole = reply_of(text, reasoning);
    for (size_t at = 0; at <= text.size(); ++at) {
      const std::string_view head = std::string_view(text).substr(0, at), tail = std::string_view(text).substr(at);
      const Parsed split = test::parse_all(ChatTextParser(reasoning), std::vector{head, tail}, ReplyEnd::kStop);
      ASSERT_TRUE(test::same(split.reply, whole) && test::events_make(split.events, whole)) << text << " at " << at;
      const Parsed cut = parse_text(head, reasoning, ReplyEnd::kCut);
      ASSERT_TRUE(test::begins(cut.reply, whole) && test::events_make(cut.events, cut.reply)) << text << " at " << at;
    }
  }
}

TEST(ChatParser, TokensGiveWhatTheirTextGives) {
  const Tokenizer& tokenizer = test::v41_tokenizer();
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_answer(random);
    const bool reasoning = random() % 2 == 0;
    const std::vector<int32_t> ids = tokenizer.encode(text);
    const Parsed whole = parse_ids(tokenizer, ids, reasoning, ReplyEnd::kStop);
    ASSERT_TRUE(test::same(whole.reply, parse_text(text, reasoning, ReplyEnd::kStop).reply)) << text;
    ASSERT_TRUE(test::events_make(whole.events, whole.reply)) << text;
    for (size_t at = 0; at < ids.size(); ++at) {
      const std::vector<int32_t> head(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(at));
      const Parsed cut = parse_ids(tokenizer, head, reasoning, ReplyEnd::kCut);
      ASSERT_TRUE(test::begins(cut.reply, whole.reply)) << text << " at " << at;
    }
  }
}

TEST(ChatParser, MarkersSpelledInOtherTokensAreText) {
  const Tokenizer& tokenizer = test::v41_tokenizer();
  const std::string text = "a</think>b" + block_text({call_text("f", {})}) + kEos;
  for (const bool reasoning : {false, true}) {
    const Parsed parsed = parse_ids(tokenizer, tokenizer.encode(text, Markers::kText), reasoning, ReplyEnd::kStop);
    EXPECT_EQ(reasoning ? parsed.reply.reasoning : parsed.reply.content, text);
  }
}

TEST(ChatParser, OnlyWholeCharactersComeOut) {
  const Tokenizer& tokenizer = test::v41_tokenizer();
  const auto ids = tokenizer.encode("👍🏽 é 東京 🏴󠁧󠁢󠁥󠁮󠁧󠁿 𝔘");
  for (size_t n = 0; n <= ids.size(); ++n) {
    const std::vector<int32_t> head(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
    const Parsed cut = parse_ids(tokenizer, head, false, ReplyEnd::kCut);
    EXPECT_EQ(cut.reply.content.find("\xEF\xBF\xBD"), std::string::npos);
    EXPECT_EQ(parse_ids(tokenizer, head, false, ReplyEnd::kStop).reply.content, tokenizer.decode(head));
  }
}

// A megabyte in one piece, in single characters, and with tens of thousands of tags: time stays linear.
TEST(ChatParser, LongAnswersTakeLinearTime) {
  std::vector<Parameter> parameters;
  for (int i = 0; i < 20000; ++i) parameters.push_back({std::to_string(i), true, "\n\n<value>"});
  const std::string text = "<\n\n" + block_text({call_text("f", parameters)}) + kEos;
  const ChatReply whole = reply_of(text);
  EXPECT_EQ(nlohmann::json::parse(whole.tool_calls.at(0).arguments).size(), 20000u);
  std::vector<std::string_view> characters;
  for (size_t i = 0; i < text.size(); ++i) characters.push_back(std::string_view(text).substr(i, 1));
  EXPECT_TRUE(test::same(test::parse_all(ChatTextParser(false), characters, ReplyEnd::kStop).reply, whole));
  const std::string header = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" + std::string(1'000'000, '"');
  ChatTextParser parser(false);
  std::vector<ChatEvent> events;
  for (const char c : header) parser.push({&c, 1}, events);
  EXPECT_TRUE(parser.reply().tool_calls.empty());
}

}  // namespace
}  // namespace mdi
