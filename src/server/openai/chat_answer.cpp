#include "server/openai/chat_answer.h"

#include <utility>
#include <vector>

#include "server/openai/errors.h"
#include "server/wire.h"

namespace mdi {

namespace {

AnswerHead head_of(const Service& service, const char* object) {
  return {.id = random_id("chatcmpl-"),
          .object = object,
          .created = unix_time(),
          .model = service.options().model_name,
          .fingerprint = service.fingerprint()};
}

// One object at the end.
class WholeChat {
 public:
  WholeChat(Service& service, std::shared_ptr<HttpReply> reply, const ChatRequest& request)
      : service_(service),
        reply_(std::move(reply)),
        logprobs_(request.generation.logprobs.has_value()),
        samples_(static_cast<size_t>(request.generation.n)) {}

  void take(const AnswerPart& part) {
    if (reply_ == nullptr || part.silence) return;
    Sample& sample = samples_[static_cast<size_t>(part.sample)];
    for (const ChatEvent& event : part.events) add(sample, event);
    sample.tokens.insert(sample.tokens.end(), part.tokens.begin(), part.tokens.end());
    if (part.finish) sample.finish = *part.finish;
    if (part.finish && is_failure(*part.finish)) {
      service_.refuse(*reply_, answer_error(part), openai_error);
      reply_.reset();
    } else if (part.last) {
      send(part.total);
    }
  }

 private:
  struct Sample {
    std::string reasoning, content;
    std::vector<ToolCall> calls;
    std::vector<AnswerToken> tokens;
    Finish finish = Finish::kStop;
  };

  static void add(Sample& sample, const ChatEvent& event) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        sample.reasoning += event.text;
        break;
      case ChatEvent::Kind::kContent:
        sample.content += event.text;
        break;
      case ChatEvent::Kind::kCallBegin:
        sample.calls.push_back({random_id("call_"), event.text, ""});
        break;
      case ChatEvent::Kind::kArguments:
        sample.calls.back().arguments += event.text;
        break;
      case ChatEvent::Kind::kCallEnd:
        break;
    }
  }

  OrderedJson choice(size_t index) const {
    const Sample& sample = samples_[index];
    OrderedJson message;
    message["role"] = "assistant";
    message["content"] = sample.content.empty() && !sample.calls.empty() ? OrderedJson() : OrderedJson(sample.content);
    message["refusal"] = nullptr;
    if (!sample.reasoning.empty()) message["reasoning_content"] = sample.reasoning;
    for (const ToolCall& call : sample.calls) {
      OrderedJson entry;
      entry["id"] = call.id;
      entry["type"] = "function";
      entry["function"]["name"] = call.name;
      entry["function"]["arguments"] = call.arguments;
      message["tool_calls"].push_back(std::move(entry));
    }
    OrderedJson out;
    out["index"] = index;
    out["message"] = std::move(message);
    out["logprobs"] = logprobs_ ? chat_logprobs(service_.tokenizer(), sample.tokens) : OrderedJson();
    out["finish_reason"] = finish_json(sample.finish);
    return out;
  }

  void send(const AnswerUsage& usage) {
    OrderedJson out = head_of(service_, "chat.completion").json();
    out["choices"] = OrderedJson::array();
    for (size_t i = 0; i < samples_.size(); ++i) out["choices"].push_back(choice(i));
    out["usage"] = usage_json(usage);
    send_json(*reply_, 200, out);
    reply_.reset();
  }

  Service& service_;
  std::shared_ptr<HttpReply> reply_;
  bool logprobs_;
  std::vector<Sample> samples_;
};

// Chunks as they come.
class StreamedChat {
 public:
  StreamedChat(Service& service, std::shared_ptr<HttpReply> reply, const ChatRequest& request)
      : service_(service),
        reply_(std::move(reply)),
        usage_(request.stream.include_usage),
        continuous_(request.stream.continuous_usage),
        logprobs_(request.generation.logprobs.has_value()),
        samples_(static_cast<size_t>(request.generation.n)) {
    const AnswerHead head = head_of(service_, "chat.completion.chunk");
    head_ = "data: " + json_text(head.json());
    head_.pop_back();  // the object stays open
  }

  void take(const AnswerPart& part) {
    if (reply_ == nullptr) return;
    if (part.silence) {
      begin();
      reply_->write(kKeepAlive);
      return;
    }
    std::string out;
    if (part.finish && is_failure(*part.finish)) return fail(part);
    if (continuous_) so_far_ = json_text(usage_json(part.total));
    Sample& sample = samples_[static_cast<size_t>(part.sample)];
    if (!sample.begun) {
      sample.begun = true;
      chunk(part.sample, R"({"role":"assistant","content":"","refusal":null})", "null", nullptr, out);
    }
    std::string logprobs = "null";
    if (logprobs_ && !part.tokens.empty()) logprobs = json_text(chat_logprobs(service_.tokenizer(), part.tokens));
    for (const ChatEvent& event : part.events) {
      if (event.kind == ChatEvent::Kind::kCallEnd) continue;
      chunk(part.sample, delta(event), std::exchange(logprobs, "null"), nullptr, out);
    }
    if (part.finish || logprobs != "null") {
      chunk(part.sample, "{}", logprobs, part.finish ? finish_json(*part.finish) : nullptr, out);
    }
    if (part.last) {
      if (usage_) out += head_ + R"(,"choices":[],"usage":)" + json_text(usage_json(part.total)) + "}\n\n";
      out += "data: [DONE]\n\n";
    }
    begin();
    reply_->write(std::move(out));
    if (!part.last) return;
    reply_->end();
    reply_.reset();
  }

 private:
  struct Sample {
    bool begun = false;
  };

  static std::string delta(const ChatEvent& event) {
    const std::string call = R"({"tool_calls":[{"index":)" + std::to_string(event.call);
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        return R"({"reasoning_content":)" + json_string(event.text) + "}";
      case ChatEvent::Kind::kContent:
        return R"({"content":)" + json_string(event.text) + "}";
      case ChatEvent::Kind::kCallBegin:
        return call + R"(,"id":")" + random_id("call_") + R"(","type":"function","function":{"name":)" +
               json_string(event.text) + R"(,"arguments":""}}]})";
      case ChatEvent::Kind::kArguments:
        return call + R"(,"function":{"arguments":)" + json_string(event.text) + "}}]}";
      case ChatEvent::Kind::kCallEnd:
        break;
    }
    return "{}";
  }

  void chunk(int32_t sample, const std::string& delta, const std::string& logprobs, const char* finish,
             std::string& out) const {
    out += head_;
    out += R"(,"choices":[{"index":)" + std::to_string(sample) + R"(,"delta":)" + delta + R"(,"logprobs":)" + logprobs +
           R"(,"finish_reason":)";
    out += finish == nullptr ? "null" : '"' + std::string(finish) + '"';
    out += usage_ ? "}],\"usage\":" + so_far_ + "}\n\n" : "}]}\n\n";
  }

  void begin() {
    if (!std::exchange(begun_, true)) begin_events(*reply_);
  }

  void fail(const AnswerPart& part) {
    send_failure(service_, *reply_, part, begun_);
    reply_.reset();
  }

  Service& service_;
  std::shared_ptr<HttpReply> reply_;
  bool usage_, continuous_, logprobs_, begun_ = false;
  std::string head_, so_far_ = "null";
  std::vector<Sample> samples_;
};

}  // namespace

AnswerCallback chat_answer(Service& service, std::shared_ptr<HttpReply> reply, const ChatRequest& request) {
  if (request.stream.stream) {
    auto answer = std::make_shared<StreamedChat>(service, std::move(reply), request);
    return [answer](const AnswerPart& part) { answer->take(part); };
  }
  auto answer = std::make_shared<WholeChat>(service, std::move(reply), request);
  return [answer](const AnswerPart& part) { answer->take(part); };
}

}  // namespace mdi
