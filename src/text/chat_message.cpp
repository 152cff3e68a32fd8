#include "text/chat_message.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {
namespace {

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority", "domain", "title", "read_url"};

// A JSON object with the place where it stands, for messages.
struct Place {
  const OrderedJson& value;
  std::string where;

  [[noreturn]] void refuse(const std::string& expected) const {
    throw Error(where, "expected " + expected + ", found " + printable(python_json(value), 80));
  }
  void expect_object() const {
    if (!value.is_object()) refuse("an object");
  }
  // The member, or null.
  Place member(const char* key) const {
    static const OrderedJson null;
    const auto found = value.find(key);
    return {found == value.end() ? null : *found, where + "." + key};
  }
  Place item(size_t i) const { return {value[i], where + "[" + std::to_string(i) + "]"}; }
  bool absent() const { return value.is_null(); }
  const std::string& string() const {
    if (!value.is_string()) refuse("a string");
    return value.get_ref<const std::string&>();
  }
  std::string string_or_empty() const { return absent() ? std::string() : string(); }
  size_t list() const {
    if (!value.is_array()) refuse("a list");
    return value.size();
  }
};

// What a picture may be given by; whether it can be used is for whoever loads it to say.
void check_image(const Place& part) {
  for (const char* key : {"source", "url", "data", "image_url"}) {
    const Place member = part.member(key);
    const bool given =
        member.value.is_object() || (member.value.is_string() && !member.value.get_ref<const std::string&>().empty());
    if (given) return;
  }
  part.refuse("an image with source, url, data or image_url");
}

ContentPart parse_part(const Place& part) {
  part.expect_object();
  const std::string& type = part.member("type").string();
  if (type == "text") return {ContentPart::Kind::kText, part.member("text").string(), {}};
  if (type == "image" || type == "image_url") {
    check_image(part);
    return {ContentPart::Kind::kImage, python_json(part.value), {}};
  }
  if (type == "tool_result") part.refuse("tool results in messages of role tool");
  return {ContentPart::Kind::kUnsupported, type, {}};
}

std::vector<ContentPart> parse_content(const Place& content) {
  if (content.value.is_string()) return {{ContentPart::Kind::kText, content.string(), {}}};
  if (!content.value.is_array()) content.refuse("a string or a list of parts");
  std::vector<ContentPart> parts;
  for (size_t i = 0; i < content.value.size(); ++i) parts.push_back(parse_part(content.item(i)));
  return parts;
}

std::vector<ToolCall> parse_tool_calls(const Place& calls) {
  std::vector<ToolCall> parsed;
  if (calls.absent()) return parsed;
  for (size_t i = 0, n = calls.list(); i < n; ++i) {
    const Place call = calls.item(i);
    call.expect_object();
    const Place function = call.member("function");
    function.expect_object();
    const Place arguments = function.member("arguments");
    std::string text;
    if (arguments.value.is_object()) {
      text = python_json(arguments.value);
    } else {
      text = arguments.string_or_empty();
    }
    parsed.push_back({call.member("id").string_or_empty(), function.member("name").string(), std::move(text)});
  }
  return parsed;
}

std::vector<std::string> parse_tools(const Place& tools) {
  std::vector<std::string> parsed;
  if (tools.absent()) return parsed;
  for (size_t i = 0, n = tools.list(); i < n; ++i) {
    const Place tool = tools.item(i);
    tool.expect_object();
    const Place type = tool.member("type");
    if (!type.absent() && type.string() != "function") type.refuse("\"function\"");
    const Place function = tool.member("function");
    function.expect_object();
    if (function.member("name").string().empty()) function.member("name").refuse("a name");
    parsed.push_back(python_json(function.value));
  }
  return parsed;
}

Role parse_role(const Place& role) {
  const std::string& name = role.string();
  if (name == "system") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kReminder;
  role.refuse("system, user, assistant, tool or latest_reminder");
}

// A member that only some roles have: there it is read, elsewhere it is an error unless it is null or empty.
bool belongs(const Place& member, bool here, const char* roles) {
  const bool empty = member.absent() || (member.value.is_array() && member.value.empty()) ||
                     (member.value.is_string() && member.value.get_ref<const std::string&>().empty());
  if (!empty && !here) member.refuse(std::string("only in messages of role ") + roles);
  return here;
}

ChatMessage parse_message(const Place& in) {
  in.expect_object();
  ChatMessage message;
  message.role = parse_role(in.member("role"));
  const bool system = message.role == Role::kSystem, assistant = message.role == Role::kAssistant;
  const Place content = in.member("content");
  if (!(assistant && content.absent())) message.content = parse_content(content);
  if (belongs(in.member("reasoning_content"), assistant, "assistant")) {
    message.reasoning = in.member("reasoning_content").string_or_empty();
  }
  if (belongs(in.member("tool_calls"), assistant, "assistant")) {
    message.tool_calls = parse_tool_calls(in.member("tool_calls"));
  }
  if (belongs(in.member("tool_call_id"), message.role == Role::kTool, "tool")) {
    message.tool_call_id = in.member("tool_call_id").string_or_empty();
  }
  if (belongs(in.member("tools"), system, "system")) message.tools = parse_tools(in.member("tools"));
  if (const Place format = in.member("response_format"); belongs(format, system, "system") && !format.absent()) {
    format.expect_object();
    message.response_format = python_json(format.value);
  }
  if (const Place task = in.member("task"); belongs(task, system || message.role == Role::kUser, "system or user")) {
    message.task = task.string_or_empty();
    if (!message.task.empty() && std::find(kTasks.begin(), kTasks.end(), message.task) == kTasks.end()) {
      task.refuse("action, query, authority, domain, title or read_url");
    }
  }
  if (const Place open = in.member("wo_eos"); !open.absent()) {
    if (!open.value.is_boolean()) open.refuse("true or false");
    message.no_eos = open.value.get<bool>();
  }
  return message;
}

}  // namespace

ChatMessage text_message(Role role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.push_back({ContentPart::Kind::kText, std::move(text), {}});
  return message;
}

std::vector<ChatMessage> parse_messages(const OrderedJson& messages, const OrderedJson& tools) {
  const Place list{messages, "messages"};
  std::vector<ChatMessage> parsed;
  for (size_t i = 0, n = list.list(); i < n; ++i) parsed.push_back(parse_message(list.item(i)));
  if (parsed.empty()) list.refuse("at least one message");
  std::vector<std::string> given = parse_tools({tools, "tools"});
  if (given.empty()) return parsed;
  if (parsed.front().role != Role::kSystem) parsed.insert(parsed.begin(), text_message(Role::kSystem, ""));
  if (!parsed.front().tools.empty()) throw Error("tools", "given both with the request and in messages[0]");
  parsed.front().tools = std::move(given);
  return parsed;
}

int parse_effort(const OrderedJson& value) {
  if (value.is_number_integer() && value >= 1 && value <= 100) return value.get<int>();
  if (value == "low") return 50;
  if (value == "high") return 75;
  if (value == "max") return 100;
  throw Error("reasoning effort",
              "expected low, high, max or a number of 1 to 100, found " + printable(python_json(value), 80));
}

}  // namespace mdi
