#include "server/anthropic/messages_answer.h"

#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/anthropic/errors.h"
#include "server/openai/parts_json.h"
#include "server/wire.h"

namespace mdi {

namespace {

const char* stop_reason(Finish finish) {
  switch (finish) {
    case Finish::kStopString:
      return "stop_sequence";
    case Finish::kLength:
      return "max_tokens";
    case Finish::kToolCalls:
      return "tool_use";
    default:
      return "end_turn";
  }
}

OrderedJson stop_sequence(const AnswerPart& part) {
  return part.finish == Finish::kStopString ? OrderedJson(part.stop) : OrderedJson();
}

OrderedJson empty_message(const Service& service) {
  OrderedJson message;
  message["id"] = random_id("msg_");
  message["type"] = "message";
  message["role"] = "assistant";
  message["model"] = service.options().model_name;
  message["content"] = OrderedJson::array();
  message["stop_reason"] = nullptr;
  message["stop_sequence"] = nullptr;
  return message;
}

// A call's arguments as the object that clients expect. What was cut off, or is no JSON, is shown as it is.
OrderedJson input_of(const std::string& arguments) {
  if (arguments.empty()) return OrderedJson::object();
  try {
    OrderedJson input = parse_ordered_json(arguments, "input", {.max_bytes = arguments.size(), .max_depth = 64});
    if (input.is_object()) return input;
  } catch (const Error&) {
  }
  OrderedJson raw;
  raw["invalid_json"] = arguments;
  return raw;
}

// One message at the end.
class WholeMessage {
 public:
  WholeMessage(Service& service, const ThinkingSigner& signer, std::shared_ptr<HttpReply> reply,
               const MessagesRequest& request)
      : service_(service), signer_(signer), reply_(std::move(reply)), headers_(messages_headers(request)) {}

  void take(const AnswerPart& part) {
    if (reply_ == nullptr || part.silence) return;
    for (const ChatEvent& event : part.events) add(event);
    if (!part.last) return;
    if (is_failure(*part.finish)) {
      service_.refuse(*reply_, answer_error(part), anthropic_error);
    } else {
      send(part);
    }
    reply_.reset();
  }

 private:
  void add(const ChatEvent& event) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        thinking_ += event.text;
        break;
      case ChatEvent::Kind::kContent:
        text_ += event.text;
        break;
      case ChatEvent::Kind::kCallBegin:
        calls_.push_back({random_id("toolu_"), event.text, ""});
        break;
      case ChatEvent::Kind::kArguments:
        calls_.back().arguments += event.text;
        break;
      case ChatEvent::Kind::kCallEnd:
        break;
    }
  }

  void send(const AnswerPart& part) {
    OrderedJson message = empty_message(service_);
    OrderedJson& content = message["content"];
    if (!thinking_.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", thinking_}, {"signature", signer_.sign(thinking_)}});
    }
    if (!text_.empty()) content.push_back({{"type", "text"}, {"text", text_}});
    for (const ToolCall& call : calls_) {
      content.push_back(
          {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", input_of(call.arguments)}});
    }
    message["stop_reason"] = stop_reason(*part.finish);
    message["stop_sequence"] = stop_sequence(part);
    message["usage"] = anthropic_usage(part.total);
    reply_->send(200, "application/json", json_text(message), std::move(headers_));
  }

  Service& service_;
  const ThinkingSigner& signer_;
  std::shared_ptr<HttpReply> reply_;
  Headers headers_;
  std::string thinking_, text_;
  std::vector<ToolCall> calls_;
};

// Events as they come. Blocks follow one another; one is open at a time.
class StreamedMessage {
 public:
  StreamedMessage(Service& service, const ThinkingSigner& signer, std::shared_ptr<HttpReply> reply,
                  const MessagesRequest& request)
      : service_(service), signer_(signer), reply_(std::move(reply)), headers_(messages_headers(request)) {}

  void take(const AnswerPart& part) {
    if (reply_ == nullptr) return;
    if (part.silence) return keep_alive();
    if (part.finish && is_failure(*part.finish)) return fail(part);
    std::string out;
    begin(part, out);
    for (const ChatEvent& event : part.events) add(event, out);
    if (part.last) finish(part, out);
    reply_->write(std::move(out));
    if (!part.last) return;
    reply_->end();
    reply_.reset();
  }

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kCall };

  static void emit(const char* name, std::string_view members, std::string& out) {
    out += "event: ";
    out += name;
    out += "\ndata: {\"type\":\"";
    out += name;
    out += '"';
    out += members;
    out += "}\n\n";
  }

  void open_stream() {
    if (std::exchange(open_stream_, true)) return;
    headers_.emplace_back("cache-control", "no-cache");
    headers_.emplace_back("x-accel-buffering", "no");
    reply_->begin(200, "text/event-stream; charset=utf-8", headers_);
  }

  // A message's first event is its start, which is not known yet while it waits: then a comment has to do.
  void keep_alive() {
    open_stream();
    std::string out;
    if (begun_) emit("ping", "", out);
    reply_->write(begun_ ? std::move(out) : kKeepAlive);
  }

  void begin(const AnswerPart& part, std::string& out) {
    if (std::exchange(begun_, true)) return;
    open_stream();
    OrderedJson message = empty_message(service_);
    AnswerUsage usage = part.total;
    usage.completion_tokens = 0;
    message["usage"] = anthropic_usage(usage);
    emit("message_start", ",\"message\":" + json_text(message), out);
    emit("ping", "", out);
  }

  void open(Block block, const std::string& content, std::string& out) {
    close(out);
    open_ = block;
    emit("content_block_start", index() + ",\"content_block\":" + content, out);
  }

  void close(std::string& out) {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kThinking) {
      delta(R"("signature_delta","signature":)" + json_string(signer_.sign(thinking_)), out);
    }
    emit("content_block_stop", index(), out);
    open_ = Block::kNone;
    ++index_;
  }

  void delta(const std::string& members, std::string& out) const {
    emit("content_block_delta", index() + ",\"delta\":{\"type\":" + members + "}", out);
  }

  void add(const ChatEvent& event, std::string& out) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        if (open_ != Block::kThinking)
          open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})", out);
        thinking_ += event.text;
        delta(R"("thinking_delta","thinking":)" + json_string(event.text), out);
        break;
      case ChatEvent::Kind::kContent:
        if (open_ != Block::kText) open(Block::kText, R"({"type":"text","text":""})", out);
        delta(R"("text_delta","text":)" + json_string(event.text), out);
        break;
      case ChatEvent::Kind::kCallBegin:
        open(Block::kCall,
             R"({"type":"tool_use","id":")" + random_id("toolu_") + R"(","name":)" + json_string(event.text) +
                 R"(,"input":{}})",
             out);
        break;
      case ChatEvent::Kind::kArguments:
        delta(R"("input_json_delta","partial_json":)" + json_string(event.text), out);
        break;
      case ChatEvent::Kind::kCallEnd:
        close(out);
        break;
    }
  }

  void finish(const AnswerPart& part, std::string& out) {
    close(out);
    emit("message_delta",
         R"(,"delta":{"stop_reason":")" + std::string(stop_reason(*part.finish)) + R"(","stop_sequence":)" +
             json_text(stop_sequence(part)) + R"(},"usage":)" + json_text(anthropic_usage(part.total)),
         out);
    emit("message_stop", "", out);
  }

  void fail(const AnswerPart& part) {
    const ApiError error = answer_error(part);
    if (open_stream_) {
      service_.count(error);
      std::string id;
      for (const auto& [name, value] : headers_) {
        if (name == "request-id") id = value;
      }
      reply_->write("event: error\ndata: " + anthropic_error_json(error, id) + "\n\n");
      reply_->end();
    } else {
      service_.refuse(*reply_, error, anthropic_error);
    }
    reply_.reset();
  }

  std::string index() const { return ",\"index\":" + std::to_string(index_); }

  Service& service_;
  const ThinkingSigner& signer_;
  std::shared_ptr<HttpReply> reply_;
  Headers headers_;
  bool open_stream_ = false, begun_ = false;
  Block open_ = Block::kNone;
  int index_ = 0;
  std::string thinking_;
};

}  // namespace

AnswerCallback messages_answer(Service& service, const ThinkingSigner& signer, std::shared_ptr<HttpReply> reply,
                               const MessagesRequest& request) {
  if (request.stream) {
    auto answer = std::make_shared<StreamedMessage>(service, signer, std::move(reply), request);
    return [answer](const AnswerPart& part) { answer->take(part); };
  }
  auto answer = std::make_shared<WholeMessage>(service, signer, std::move(reply), request);
  return [answer](const AnswerPart& part) { answer->take(part); };
}

OrderedJson anthropic_usage(const AnswerUsage& usage) {
  OrderedJson out;
  out["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  out["cache_creation_input_tokens"] = 0;
  out["cache_read_input_tokens"] = usage.cached_tokens;
  out["output_tokens"] = usage.completion_tokens;
  return out;
}

Headers messages_headers(const MessagesRequest& request) {
  Headers headers{{"request-id", random_id("req_")}};
  if (request.edited_thinking > 0) {
    headers.emplace_back("x-edited-thinking-blocks", std::to_string(request.edited_thinking));
  }
  return headers;
}

}  // namespace mdi
