#include "server/anthropic/blocks.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "server/answerable.h"
#include "server/fields.h"

namespace mdi {

namespace {

constexpr size_t kMostText = size_t{64} << 20;

std::string item(const std::string& path, size_t i) { return path + "[" + std::to_string(i) + "]"; }

std::string needed_string(Fields& fields, const char* key, size_t most = kMostText) {
  auto text = fields.string(key, most);
  if (!text) fields.refuse(key, "a string");
  return std::move(*text);
}

ContentPart text_part(std::string text) { return {ContentPart::Kind::kText, std::move(text), {}}; }

// The text of a text block.
std::string read_text(Fields& block) {
  std::string text = needed_string(block, "text");
  block.ignore({"cache_control", "citations"});
  block.done();
  return text;
}

class Reader {
 public:
  Reader(ImageReader& images, const ThinkingSigner& signer) : images_(images), signer_(signer) {}

  void system(const OrderedJson& value) {
    ChatMessage message;
    message.role = Role::kSystem;
    if (value.is_string()) {
      message.content.push_back(text_part(value.get<std::string>()));
    } else if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) {
        Fields block(value[i], item("system", i));
        if (!block.word("type", {"text"})) block.refuse("type", "\"text\"");
        message.content.push_back(text_part(read_text(block)));
      }
    } else {
      throw invalid_param("system", "a string or a list of text blocks", describe_value(value));
    }
    out_.messages.push_back(std::move(message));
  }

  void message(const OrderedJson& value, const std::string& path) {
    Fields fields(value, path);
    const auto role = fields.word("role", {"user", "assistant", "system"});
    if (!role) fields.refuse("role", "\"user\", \"assistant\" or \"system\"");
    const OrderedJson* content = fields.find("content");
    const bool whole = content != nullptr && content->is_string();
    if (!whole && (content == nullptr || !content->is_array())) {
      fields.refuse("content", "a string or a list of blocks");
    }
    fields.done();
    if (*role == "assistant") {
      begin_assistant();
    } else if (*role == "system") {
      out_.messages.emplace_back().role = Role::kSystem;
    } else if (!whole && content->empty()) {
      user();  // a message without blocks is a message
    }
    if (whole) return text(*role, content->get<std::string>());
    for (size_t i = 0; i < content->size(); ++i) block(*role, (*content)[i], item(path + ".content", i));
  }

  Conversation take() {
    ChatMessage& last = out_.messages.back();
    if (last.role == Role::kAssistant) {
      if (!last.tool_calls.empty()) {
        throw ApiError(ApiErrorKind::kInvalid,
                       "messages: the last message calls tools; expected a user message with their results", "messages",
                       "invalid_value");
      }
      last.no_eos = true;
    }
    check_answerable(out_.messages);
    return std::move(out_);
  }

 private:
  // Messages of the assistant in a row are one.
  void begin_assistant() {
    if (!out_.messages.empty() && out_.messages.back().role == Role::kAssistant) return;
    out_.messages.emplace_back().role = Role::kAssistant;
  }

  // A user's blocks around tool results are messages of their own: the format merges them in their order.
  ChatMessage& user() {
    if (out_.messages.empty() || out_.messages.back().role != Role::kUser) {
      out_.messages.emplace_back().role = Role::kUser;
    }
    return out_.messages.back();
  }

  void text(const std::string& role, std::string text) {
    if (role != "assistant") {
      ChatMessage& target = role == "user" ? user() : out_.messages.back();
      return target.content.push_back(text_part(std::move(text)));
    }
    std::vector<ContentPart>& content = out_.messages.back().content;
    if (content.empty()) content.push_back(text_part({}));
    content.front().text += text;
  }

  void block(const std::string& role, const OrderedJson& value, const std::string& path) {
    Fields fields(value, path);
    const OrderedJson* type = fields.find("type");
    if (type == nullptr || !type->is_string()) fields.refuse("type", "the type of a block");
    const auto& name = type->get_ref<const std::string&>();
    if (name == "text") return text(role, read_text(fields));
    if (role == "user" && name == "image") return user().content.push_back(images_.read(value, path));
    if (role == "user" && name == "tool_result") return tool_result(fields, path);
    if (role == "assistant" && name == "tool_use") return tool_use(fields);
    if (role == "assistant" && name == "thinking") return thinking(fields);
    if (role == "assistant" && name == "redacted_thinking") {
      needed_string(fields, "data");
      return fields.done();
    }
    fields.refuse("type", role == "user"        ? "\"text\", \"image\" or \"tool_result\""
                          : role == "assistant" ? "\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\""
                                                : "\"text\"");
  }

  void thinking(Fields& fields) {
    const std::string text = needed_string(fields, "thinking");
    const std::string signature = fields.string("signature", 4096).value_or("");
    fields.ignore({"cache_control"});
    fields.done();
    if (!signer_.matches(text, signature)) ++out_.edited_thinking;
    out_.messages.back().reasoning += text;
  }

  void tool_use(Fields& fields) {
    ToolCall call;
    call.id = needed_string(fields, "id", 1024);
    call.name = needed_string(fields, "name", 1024);
    // It stands between quotes in the prompt.
    const bool plain = !call.name.empty() && std::all_of(call.name.begin(), call.name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-';
    });
    if (!plain || call.name.size() > 128) fields.refuse("name", "1 to 128 letters, digits, _ or -");
    const OrderedJson* input = fields.object("input");
    if (input == nullptr) fields.refuse("input", "an object");
    fields.ignore({"cache_control", "caller", "toolset_name"});
    fields.done();
    if (!call_ids_.insert(call.id).second) fields.refuse("id", "another id than the other calls'");
    call.arguments = python_json(*input);
    out_.messages.back().tool_calls.push_back(std::move(call));
  }

  void tool_result(Fields& fields, const std::string& path) {
    ChatMessage message;
    message.role = Role::kTool;
    message.tool_call_id = needed_string(fields, "tool_use_id", 1024);
    if (call_ids_.find(message.tool_call_id) == call_ids_.end()) {
      fields.refuse("tool_use_id", "the id of a tool_use block of an earlier message");
    }
    const OrderedJson* content = fields.find("content");
    const bool failed = fields.boolean("is_error").value_or(false);
    fields.ignore({"cache_control", "toolset_name"});
    fields.done();
    if (content != nullptr && content->is_string()) {
      message.content.push_back(text_part(content->get<std::string>()));
    } else if (content != nullptr && content->is_array()) {
      for (size_t i = 0; i < content->size(); ++i) {
        const std::string where = item(path + ".content", i);
        Fields part((*content)[i], where);
        const auto type = part.word("type", {"text", "image"});
        if (!type) part.refuse("type", "\"text\" or \"image\"");
        message.content.push_back(*type == "text" ? text_part(read_text(part)) : images_.read((*content)[i], where));
      }
    } else if (content != nullptr) {
      fields.refuse("content", "a string or a list of blocks");
    }
    if (failed) {
      const bool begins_with_text =
          !message.content.empty() && message.content.front().kind == ContentPart::Kind::kText;
      if (!begins_with_text) message.content.insert(message.content.begin(), text_part({}));
      message.content.front().text.insert(0, "Error: ");
    }
    out_.messages.push_back(std::move(message));
  }

  ImageReader& images_;
  const ThinkingSigner& signer_;
  Conversation out_;
  std::set<std::string> call_ids_;
};

}  // namespace

Conversation read_blocks(const OrderedJson* system, const OrderedJson& messages, ImageReader& images,
                         const ThinkingSigner& signer) {
  Reader reader(images, signer);
  if (system != nullptr) reader.system(*system);
  for (size_t i = 0; i < messages.size(); ++i) reader.message(messages[i], item("messages", i));
  return reader.take();
}

}  // namespace mdi
