// A conversation with a model: messages to a prompt, generated tokens to an answer that joins the messages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "text/chat_parser.h"
#include "text/chat_render.h"
#include "text/chat_replay.h"

namespace mdi {

struct ChatSettings {
  bool thinking = true;
  int effort = 75;
  SamplingParams sampling{.temperature = 1.0f, .top_k = 0, .top_p = 0.95f};
  int32_t max_tokens = 1024;  // of an answer, reasoning included
  bool draft = false;
};

class ChatSession {
 public:
  // All three outlive the session. context: the most tokens of a conversation, which the generator has room for.
  ChatSession(Generator& generator, const Tokenizer& tokenizer, const ModelConfig& config, int64_t context)
      : generator_(generator), tokenizer_(tokenizer), config_(config), context_(context) {}

  ChatSettings settings;

  const std::vector<ChatMessage>& messages() const { return messages_; }
  void clear() { messages_.clear(); }
  // Replaces the system message; an empty text removes it.
  void set_system(const std::string& text);
  // Reads and writes OpenAI-style JSON. load throws mdi::Error and then changes nothing.
  void load(const std::string& path);
  void save(const std::string& path) const;

  // Adds a user message and answers it. on_event sees the answer as it comes; return false from go_on to end it there.
  // Throws mdi::Error when the conversation does not fit the context or the text is not UTF-8: the message is not kept.
  GenerateResult say(const std::string& text, const std::function<void(const ChatEvent&)>& on_event,
                     const std::function<bool()>& go_on);
  // Answers the last user message again, with other random numbers. Throws mdi::Error when there is none.
  GenerateResult regenerate(const std::function<void(const ChatEvent&)>& on_event, const std::function<bool()>& go_on);

 private:
  GenerateResult answer(const std::function<void(const ChatEvent&)>& on_event, const std::function<bool()>& go_on);

  Generator& generator_;
  const Tokenizer& tokenizer_;
  const ModelConfig& config_;
  int64_t context_;
  std::vector<ChatMessage> messages_;
  ReplayMemory memory_;
};

}  // namespace mdi
