// Parts of an answer as Anthropic's message and as its events: the same content both ways, in the API's order.
#include "anthropic_support.h"
#include "server/anthropic/errors.h"
#include "server/anthropic/messages_answer.h"
#include "server/route.h"

namespace mdi {
namespace {

using testing::SentReply;
using testing::signer;
using testing::small_service;
using Kind = ChatEvent::Kind;

AnswerPart part(std::vector<ChatEvent> events, std::optional<Finish> finish = {}, std::string stop = {}) {
  AnswerPart p;
  p.events = std::move(events);
  p.finish = finish;
  p.last = finish.has_value();
  p.stop = std::move(stop);
  p.total = {.prompt_tokens = 30, .cached_tokens = 20, .completion_tokens = 9};
  return p;
}

std::shared_ptr<SentReply> answered(const std::vector<AnswerPart>& parts, bool stream) {
  MessagesRequest request;
  request.stream = stream;
  auto reply = std::make_shared<SentReply>();
  const AnswerCallback callback = messages_answer(small_service(), signer(), reply, request);
  for (const AnswerPart& p : parts) callback(p);
  return reply;
}

const std::vector<AnswerPart>& everything() {
  static const std::vector<AnswerPart> parts = {
      part({{Kind::kReasoning, 0, "Let me"}}),
      part({{Kind::kReasoning, 0, " think."}, {Kind::kContent, 0, "I will"}}),
      part({{Kind::kContent, 0, " \"ask\"\n"}}),
      part({{Kind::kCallBegin, 0, "f"}, {Kind::kArguments, 0, "{\"x\": "}}),
      part({{Kind::kArguments, 0, "1}"}, {Kind::kCallEnd, 0, ""}, {Kind::kCallBegin, 1, "g"}}),
      part({{Kind::kArguments, 1, "{}"}, {Kind::kCallEnd, 1, ""}}, Finish::kToolCalls)};
  return parts;
}

struct Sent {
  std::string name;
  OrderedJson data;
};

std::vector<Sent> events_of(const std::string& text) {
  std::vector<Sent> events;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at);
    const std::string block = text.substr(at, end - at);
    const size_t line = block.find('\n');
    EXPECT_TRUE(block.starts_with("event: ")) << block;
    EXPECT_EQ(block.substr(line + 1, 6), "data: ");
    events.push_back({block.substr(7, line - 7), parse_body(block.substr(line + 7))});
    EXPECT_EQ(events.back().data["type"], events.back().name);
    at = end + 2;
  }
  return events;
}

// What a client that puts the deltas together has in the end.
OrderedJson put_together(const std::vector<Sent>& events) {
  OrderedJson content = OrderedJson::array();
  std::string json;
  for (const Sent& event : events) {
    if (event.name == "content_block_start") {
      EXPECT_EQ(event.data["index"], content.size());
      content.push_back(event.data["content_block"]);
      json.clear();
    } else if (event.name == "content_block_delta") {
      EXPECT_EQ(event.data["index"], content.size() - 1);
      const OrderedJson& delta = event.data["delta"];
      const auto add = [&](const char* key) {
        OrderedJson& value = content.back()[key];
        value = value.get<std::string>() + delta[key].get<std::string>();
      };
      if (delta["type"] == "thinking_delta") add("thinking");
      if (delta["type"] == "signature_delta") add("signature");
      if (delta["type"] == "text_delta") add("text");
      if (delta["type"] == "input_json_delta") json += delta["partial_json"].get<std::string>();
    } else if (event.name == "content_block_stop" && content.back()["type"] == "tool_use") {
      content.back()["input"] = parse_body(json);
    }
  }
  return content;
}

TEST(AnthropicAnswer, AWholeMessageHasItsBlocks) {
  const auto reply = answered(everything(), false);
  ASSERT_TRUE(reply->ended);
  EXPECT_EQ(reply->status, 200);
  EXPECT_TRUE(reply->header("request-id").starts_with("req_"));
  const OrderedJson m = parse_body(reply->text);
  EXPECT_EQ(m["type"], "message");
  EXPECT_EQ(m["model"], "small");
  EXPECT_EQ(m["stop_reason"], "tool_use");
  EXPECT_TRUE(m["stop_sequence"].is_null());
  EXPECT_EQ(m["usage"]["input_tokens"], 10);
  EXPECT_EQ(m["usage"]["cache_read_input_tokens"], 20);
  EXPECT_EQ(m["usage"]["output_tokens"], 9);
  ASSERT_EQ(m["content"].size(), 4u);
  EXPECT_EQ(m["content"][0]["thinking"], "Let me think.");
  EXPECT_TRUE(signer().matches("Let me think.", m["content"][0]["signature"].get<std::string>()));
  EXPECT_EQ(m["content"][1]["text"], "I will \"ask\"\n");
  EXPECT_EQ(m["content"][2]["input"], parse_body(R"({"x":1})"));
  EXPECT_TRUE(m["content"][3]["input"].is_object());
}

TEST(AnthropicAnswer, StreamedEventsPutTogetherAreTheWholeMessage) {
  const auto reply = answered(everything(), true);
  ASSERT_TRUE(reply->streamed && reply->ended);
  EXPECT_TRUE(reply->type.starts_with("text/event-stream"));
  const std::vector<Sent> events = events_of(reply->text);
  std::string order;
  for (const Sent& e : events) order += e.name + " ";
  const std::string start = "content_block_start ", delta = "content_block_delta ", stop = "content_block_stop ";
  EXPECT_EQ(order, "message_start ping " + start + delta + delta + delta + stop + start + delta + delta + stop + start +
                       delta + delta + stop + start + delta + stop + "message_delta message_stop ");
  OrderedJson whole = parse_body(answered(everything(), false)->text)["content"], streamed = put_together(events);
  for (OrderedJson* content : {&whole, &streamed}) {
    for (OrderedJson& block : *content) {
      if (block.contains("id")) block["id"] = "";
    }
  }
  EXPECT_EQ(streamed, whole);
  const OrderedJson& first = events.front().data["message"];
  EXPECT_TRUE(first["content"].empty() && first["stop_reason"].is_null());
  EXPECT_EQ(first["usage"]["output_tokens"], 0);
  const OrderedJson& last = events[events.size() - 2].data;
  EXPECT_EQ(last["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(last["usage"]["output_tokens"], 9);
}

TEST(AnthropicAnswer, EveryEndHasItsReason) {
  const auto end = [](Finish finish, const std::string& stop = {}) {
    const std::vector<AnswerPart> parts = {part({{Kind::kContent, 0, "x"}}), part({}, finish, stop)};
    const OrderedJson m = parse_body(answered(parts, false)->text);
    const OrderedJson streamed = events_of(answered(parts, true)->text).end()[-2].data["delta"];
    EXPECT_EQ(streamed["stop_reason"], m["stop_reason"]);
    EXPECT_EQ(streamed["stop_sequence"], m["stop_sequence"]);
    return m["stop_reason"].get<std::string>() +
           (m["stop_sequence"].is_null() ? "" : " " + m["stop_sequence"].get<std::string>());
  };
  EXPECT_EQ(end(Finish::kStop), "end_turn");
  EXPECT_EQ(end(Finish::kLength), "max_tokens");
  EXPECT_EQ(end(Finish::kToolCalls), "tool_use");
  EXPECT_EQ(end(Finish::kStopString, "STOP"), "stop_sequence STOP");
}

TEST(AnthropicAnswer, AnEmptyAnswerIsAMessageWithoutBlocks) {
  const std::vector<AnswerPart> parts = {part({}, Finish::kStop)};
  EXPECT_TRUE(parse_body(answered(parts, false)->text)["content"].empty());
  EXPECT_EQ(events_of(answered(parts, true)->text).size(), 4u);
}

TEST(AnthropicAnswer, WhatFailsBeforeItBeginsIsAnHttpError) {
  AnswerPart failed = part({}, Finish::kError);
  failed.error = "the backend fails";
  for (const bool stream : {false, true}) {
    const auto reply = answered({failed}, stream);
    EXPECT_EQ(reply->status, 500);
    const OrderedJson body = parse_body(reply->text);
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], "api_error");
    EXPECT_EQ(body["request_id"], reply->header("request-id"));
  }
  EXPECT_EQ(answered({part({}, Finish::kDeadline)}, true)->status, 504);
  EXPECT_EQ(answered({part({}, Finish::kCancelled)}, true)->status, 529);
}

TEST(AnthropicAnswer, WhatFailsLaterIsAnErrorEvent) {
  AnswerPart failed = part({}, Finish::kError);
  failed.error = "the backend fails";
  const auto reply = answered({part({{Kind::kContent, 0, "x"}}), failed}, true);
  EXPECT_TRUE(reply->ended);
  const std::vector<Sent> events = events_of(reply->text);
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data["error"]["type"], "api_error");
  EXPECT_EQ(events.back().data["request_id"], reply->header("request-id"));
  EXPECT_EQ(answered({part({{Kind::kContent, 0, "x"}}), failed}, false)->status, 500);
}

TEST(AnthropicAnswer, ArgumentsThatAreNoJsonAreShownAsTheyAre) {
  const auto reply = answered(
      {part({{Kind::kCallBegin, 0, "f"}, {Kind::kArguments, 0, "{\"x\": tr"}}), part({}, Finish::kLength)}, false);
  const OrderedJson m = parse_body(reply->text);
  EXPECT_EQ(m["stop_reason"], "max_tokens");
  EXPECT_EQ(m["content"][0]["input"]["invalid_json"], "{\"x\": tr");
}

TEST(AnthropicAnswer, ErrorsHaveTheApisTypes) {
  const auto type = [](ApiErrorKind kind) {
    return parse_body(anthropic_error({kind, "Why."}).body)["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(ApiErrorKind::kInvalid), "invalid_request_error");
  EXPECT_EQ(type(ApiErrorKind::kAuthentication), "authentication_error");
  EXPECT_EQ(type(ApiErrorKind::kNotFound), "not_found_error");
  EXPECT_EQ(type(ApiErrorKind::kTooLarge), "request_too_large");
  EXPECT_EQ(type(ApiErrorKind::kBusy), "rate_limit_error");
  EXPECT_EQ(type(ApiErrorKind::kUnavailable), "overloaded_error");
  EXPECT_EQ(type(ApiErrorKind::kInternal), "api_error");
  EXPECT_EQ(anthropic_error({ApiErrorKind::kUnavailable, "Why."}).status, 529);
  EXPECT_EQ(error_shape_of("/v1/messages"), &anthropic_error);
  EXPECT_EQ(error_shape_of("/v1/messages/count_tokens"), &anthropic_error);
  EXPECT_NE(error_shape_of("/v1/messagesx"), &anthropic_error);
}

}  // namespace
}  // namespace mdi
