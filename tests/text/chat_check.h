// What must hold for every input of the answer parsers; the tests and the fuzz target share it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat_parser.h"

namespace mdi::test {

struct Parsed {
  ChatReply reply;
  std::vector<ChatEvent> events;
};

inline bool same(const ChatReply& a, const ChatReply& b) {
  if (a.reasoning != b.reasoning || a.content != b.content || a.complete != b.complete || a.problem != b.problem ||
      a.tool_calls.size() != b.tool_calls.size()) {
    return false;
  }
  for (size_t i = 0; i < a.tool_calls.size(); ++i) {
    if (a.tool_calls[i].name != b.tool_calls[i].name || a.tool_calls[i].arguments != b.tool_calls[i].arguments) {
      return false;
    }
  }
  return true;
}

// The events, put together, are the reply.
inline bool events_make(const std::vector<ChatEvent>& events, const ChatReply& reply) {
  ChatReply made;
  made.complete = reply.complete;
  made.problem = reply.problem;
  size_t closed = 0;
  for (const ChatEvent& e : events) {
    switch (e.kind) {
      case ChatEvent::Kind::kReasoning:
        made.reasoning += e.text;
        break;
      case ChatEvent::Kind::kContent:
        made.content += e.text;
        break;
      case ChatEvent::Kind::kCallBegin:
        if (e.call != made.tool_calls.size()) return false;
        made.tool_calls.push_back({"", e.text, ""});
        break;
      case ChatEvent::Kind::kArguments:
        if (e.call + 1 != made.tool_calls.size()) return false;
        made.tool_calls.back().arguments += e.text;
        break;
      case ChatEvent::Kind::kCallEnd:
        if (e.call + 1 != made.tool_calls.size() || ++closed != made.tool_calls.size()) return false;
        break;
    }
  }
  return same(made, reply) && (!reply.complete || closed == made.tool_calls.size());
}

inline bool is_prefix(std::string_view part, std::string_view whole) { return whole.substr(0, part.size()) == part; }

// A reply cut off is a beginning of the whole one.
inline bool begins(const ChatReply& part, const ChatReply& whole) {
  if (!is_prefix(part.reasoning, whole.reasoning) || !is_prefix(part.content, whole.content)) return false;
  if (part.tool_calls.size() > whole.tool_calls.size()) return false;
  for (size_t i = 0; i < part.tool_calls.size(); ++i) {
    if (part.tool_calls[i].name != whole.tool_calls[i].name ||
        !is_prefix(part.tool_calls[i].arguments, whole.tool_calls[i].arguments)) {
      return false;
    }
  }
  return true;
}

template <class Parser, class Inputs>
Parsed parse_all(Parser parser, const Inputs& inputs, ReplyEnd end) {
  Parsed parsed;
  for (const auto& input : inputs) parser.push(input, parsed.events);
  parser.finish(end, parsed.events);
  parsed.reply = parser.reply();
  return parsed;
}

inline Parsed parse_text(std::string_view text, bool reasoning, ReplyEnd end) {
  return parse_all(ChatTextParser(reasoning), std::vector<std::string_view>{text}, end);
}

inline Parsed parse_ids(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool reasoning, ReplyEnd end) {
  return parse_all(ChatParser(tokenizer, reasoning), ids, end);
}

}  // namespace mdi::test
