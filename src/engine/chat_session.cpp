#include "engine/chat_session.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "text/ordered_json.h"

namespace mdi {

namespace {

// What a conversation file may hold.
constexpr JsonLimits kFileLimits{.max_bytes = size_t{64} << 20, .max_depth = 64};

std::string text_of(const ChatMessage& message) {
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

OrderedJson to_json(const ChatMessage& message) {
  static const char* const kNames[] = {"system", "user", "assistant", "tool", "latest_reminder"};
  OrderedJson out;
  out["role"] = kNames[static_cast<size_t>(message.role)];
  out["content"] = text_of(message);
  if (!message.reasoning.empty()) out["reasoning_content"] = message.reasoning;
  for (const ToolCall& call : message.tool_calls) {
    OrderedJson entry;
    entry["id"] = call.id;
    entry["type"] = "function";
    entry["function"]["name"] = call.name;
    entry["function"]["arguments"] = call.arguments;
    out["tool_calls"].push_back(std::move(entry));
  }
  return out;
}

ChatMessage assistant_message(const ChatReply& reply) {
  ChatMessage message = text_message(Role::kAssistant, reply.content);
  message.reasoning = reply.reasoning;
  message.tool_calls = reply.tool_calls;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) message.tool_calls[i].id = "call_" + std::to_string(i);
  return message;
}

}  // namespace

void ChatSession::set_system(const std::string& text) {
  if (!messages_.empty() && messages_.front().role == Role::kSystem) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), text_message(Role::kSystem, text));
}

void ChatSession::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(path, std::string("cannot read: ") + std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  OrderedJsonBuilder builder;
  read_json(text, path, kFileLimits, builder);
  messages_ = parse_messages(builder.take());
}

void ChatSession::save(const std::string& path) const {
  OrderedJson list = OrderedJson::array();
  for (const ChatMessage& message : messages_) list.push_back(to_json(message));
  std::ofstream out(path, std::ios::binary);
  out << list.dump(2) << "\n";
  out.close();
  if (!out) throw Error(path, std::string("cannot write: ") + std::strerror(errno));
}

GenerateResult ChatSession::say(const std::string& text, const std::function<void(const ChatEvent&)>& on_event,
                                const std::function<bool()>& go_on) {
  messages_.push_back(text_message(Role::kUser, text));
  try {
    return answer(on_event, go_on);
  } catch (...) {
    messages_.pop_back();
    throw;
  }
}

GenerateResult ChatSession::regenerate(const std::function<void(const ChatEvent&)>& on_event,
                                       const std::function<bool()>& go_on) {
  if (messages_.empty() || messages_.back().role != Role::kAssistant) throw Error("chat", "there is no answer yet");
  ++settings.sampling.seed;
  const ChatMessage last = std::move(messages_.back());
  messages_.pop_back();
  try {
    return answer(on_event, go_on);
  } catch (...) {
    messages_.push_back(last);
    throw;
  }
}

GenerateResult ChatSession::answer(const std::function<void(const ChatEvent&)>& on_event,
                                   const std::function<bool()>& go_on) {
  const ChatOptions options{
      .thinking = settings.thinking, .effort = settings.effort, .drop_thinking = true, .memory = &memory_};
  const EncodedChat encoded = encode_chat(tokenizer_, messages_, options);
  if (!encoded.images.empty()) throw Error("chat", "images in a conversation need `mdi generate --image`");
  const int64_t room = context_ - static_cast<int64_t>(encoded.ids.size());
  if (room < 1) {
    throw Error("chat", "the conversation has " + std::to_string(encoded.ids.size()) + " tokens, the context is " +
                            std::to_string(context_) + " (--context)");
  }
  const GenerateRequest request{.prompt = encoded.ids,
                                .max_tokens = static_cast<int32_t>(std::min<int64_t>(settings.max_tokens, room)),
                                .sampling = settings.sampling,
                                .stop_ids = {config_.eos_token_id},
                                .draft = settings.draft};
  ChatParser parser(tokenizer_, encoded.reasoning);
  std::vector<ChatEvent> events;
  const auto hand_out = [&] {
    for (const ChatEvent& event : events) on_event(event);
    events.clear();
  };
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [&](int64_t, int64_t) { return go_on(); };
  bool interrupted = false;
  callbacks.on_token = [&](int32_t token) {
    parser.push(token, events);
    hand_out();
    interrupted = !go_on();
    return !interrupted;
  };
  GenerateResult result = generator_.run(request, callbacks);
  if (interrupted) result.finish = FinishReason::kCancelled;
  parser.finish(result.finish == FinishReason::kStop ? ReplyEnd::kStop : ReplyEnd::kCut, events);
  hand_out();
  memory_.remember(encoded.place, parser.reply());
  messages_.push_back(assistant_message(parser.reply()));
  return result;
}

}  // namespace mdi
