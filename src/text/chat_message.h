// A conversation as data, and the reader of the OpenAI-style JSON that it arrives in (spec chat-format.md section 2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/ordered_json.h"

namespace mdi {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kReminder };

struct ContentPart {
  enum class Kind : uint8_t {
    kText,         // text
    kImage,        // text is the image's record as JSON; the prompt holds one placeholder token for it
    kToolResult,   // parts is the content, text the id of the call that it answers
    kUnsupported,  // text is the part's type; the prompt names it
  };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<ContentPart> parts;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text of an object; empty means no arguments
};

struct ChatMessage {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  std::vector<std::string> tools;    // system: the `function` member of each tool as Python's JSON text
  std::string response_format;       // system: Python's JSON text, empty for none
  std::string task;                  // system or user: action, query, authority, domain, title or read_url
  bool no_eos = false;               // assistant: the turn goes on in what is generated next
};

ChatMessage text_message(Role role, std::string text);

// Reads a list of messages. `tools` (null for none) are those given with the request: they go to the first message,
// before which an empty system message is put if it is no system message. Throws mdi::Error naming the place, such as
// "messages[2].content[0].type", for what the format has no place for; nothing is dropped silently except keys that no
// role knows.
std::vector<ChatMessage> parse_messages(const OrderedJson& messages, const OrderedJson& tools = nullptr);

// 1 to 100 from low, high, max or a number (section 3). Throws mdi::Error for anything else.
int parse_effort(const OrderedJson& value);

}  // namespace mdi
