// Generated tokens or text to reasoning, content and tool calls, while they arrive (spec chat-format.md section 6).
//
// What is handed out is final and never part of a tag: text that may yet turn out to be a tag stays back. The events of
// all calls, put together, are the reply; they do not depend on where the input was cut. An output that is cut off
// gives a prefix of what the whole would have given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_message.h"
#include "text/reply_machine.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mdi {

// For tokens: only the model's control tokens are tags. The same letters spelled out in other tokens are text, and are
// text again when they are sent back.
class ChatParser {
 public:
  // `reasoning`: the prompt ended with <think> (EncodedChat::reasoning). The tokenizer must outlive the parser; markers
  // that it lacks are never met.
  ChatParser(const Tokenizer& tokenizer, bool reasoning);

  // Appends to `events`. After the end-of-sentence token, or finish(), everything is ignored. Throws like
  // Tokenizer::bytes.
  void push(int32_t id, std::vector<ChatEvent>& events);
  void finish(ReplyEnd end, std::vector<ChatEvent>& events);

  bool done() const { return machine_.done(); }
  const ChatReply& reply() const { return machine_.reply(); }

 private:
  void mark(char symbol, std::vector<ChatEvent>& events);

  const Tokenizer* tokenizer_;
  int32_t eos_, think_end_, dsml_;  // -1: the tokenizer has none
  Utf8Stream stream_;
  ReplyMachine machine_;
};

// For text in which the markers are spelled out, eos included, as the reference decodes it.
class ChatTextParser {
 public:
  explicit ChatTextParser(bool reasoning) : machine_(reasoning) {}

  void push(std::string_view text, std::vector<ChatEvent>& events);
  void finish(ReplyEnd end, std::vector<ChatEvent>& events);

  bool done() const { return machine_.done(); }
  const ChatReply& reply() const { return machine_.reply(); }

 private:
  Utf8Stream stream_;
  std::string held_;  // may yet become a marker
  ReplyMachine machine_;
};

}  // namespace mdi
