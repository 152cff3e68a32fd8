// A service on the bundled model that takes no requests, and a reply that keeps what it is given.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../grammar/paced_limits.h"
#include "engine/load.h"
#include "server/anthropic/messages_request.h"
#include "server/fields.h"
#include "server/service.h"

namespace mdi::testing {

inline EngineOptions small_engine(int64_t max_length) {
  EngineOptions options;
  options.slots = 2;
  options.max_length = max_length;
  return options;
}

inline ServiceOptions named(const char* name) {
  ServiceOptions options;
  options.model_name = name;
  options.grammar = paced_limits();
  return options;
}

inline Service& small_service() {
  static LoadedModel loaded = load_for_cpu(std::filesystem::path(MDI_SOURCE_DIR) / "models/small", 1);
  static Service service(*loaded.context, loaded.model, &*loaded.tokenizer, small_engine(1000), named("small"));
  return service;
}

inline const ThinkingSigner& signer() {
  static const ThinkingSigner made;
  return made;
}

class SentReply : public HttpReply {
 public:
  void send(int sent_status, std::string content_type, std::string body, Headers extra) override {
    status = sent_status;
    type = std::move(content_type);
    text = std::move(body);
    headers = std::move(extra);
    ended = true;
  }
  void begin(int sent_status, std::string content_type, Headers extra) override {
    status = sent_status;
    type = std::move(content_type);
    headers = std::move(extra);
    streamed = true;
  }
  bool write(std::string more) override {
    text += more;
    return true;
  }
  void end() override { ended = true; }
  void on_gone(std::function<void()> /*gone*/) override {}
  bool gone() const override { return false; }

  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }

  int status = 0;
  std::string type, text;
  Headers headers;
  bool streamed = false, ended = false;
};

// A request with `members` besides model, max_tokens and, where they do not say it, one message.
inline OrderedJson message_body(const std::string& members) {
  OrderedJson body = parse_body(R"({"model":"small","max_tokens":5000})");
  const OrderedJson more = parse_body("{" + members + "}");
  for (const auto& [key, value] : more.items()) body[key] = value;
  if (!body.contains("messages")) body["messages"] = parse_body(R"({"m":[{"role":"user","content":"Hello"}]})")["m"];
  return body;
}

inline MessagesRequest parsed(const std::string& members) {
  return parse_messages_request(message_body(members), small_service(), signer());
}

// Which member an error names, and "accepted" where there is none.
inline std::string refused_member(const std::function<void()>& action) {
  try {
    action();
  } catch (const ApiError& error) {
    EXPECT_NE(std::string(error.what()).find(error.param()), std::string::npos) << error.what();
    return error.param().empty() ? error.what() : error.param();
  }
  return "accepted";
}

// The prompt of a conversation as text, control tokens included.
inline std::string prompt_of(const MessagesRequest& request) {
  const Generation& g = request.generation;
  const ChatPrompt prompt = render_chat(g.messages, {.thinking = g.thinking, .effort = g.effort});
  std::string text;
  for (const PromptPiece& piece : prompt.pieces) text += piece.text;
  return text;
}

}  // namespace mdi::testing
