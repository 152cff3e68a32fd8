#include "server/openai/chat_messages.h"

#include "core/error.h"

namespace mdi {

namespace {

constexpr JsonLimits kArguments{.max_bytes = size_t{16} << 20, .max_depth = kMaxBodyDepth};

// Parts that the model cannot take are an error here: the format would only name them to the model.
void check_parts(const OrderedJson& content, const std::string& path) {
  if (!content.is_array()) return;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], path + "[" + std::to_string(i) + "]");
    if (!part.word("type", {"text", "image_url", "image"})) part.refuse("type", "\"text\" or \"image_url\"");
  }
}

void check_calls(const OrderedJson& calls, const std::string& path) {
  if (!calls.is_array()) return;
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string where = path + "[" + std::to_string(i) + "]";
    Fields call(calls[i], where);
    const auto type = call.find("type");
    if (type != nullptr && *type != "function") call.refuse("type", "\"function\"");
    const OrderedJson* function = call.object("function");
    if (function == nullptr) call.refuse("function", "an object with name and arguments");
    Fields inner(*function, where + ".function");
    const auto name = inner.string("name", 1024);
    if (!name || name->empty()) inner.refuse("name", "a name");
    // It stands between quotes in the prompt; the marker is a control token there, so only a tag's end could confuse.
    if (name->find_first_of("\"<>\n") != std::string::npos) inner.refuse("name", "a name without quotes or brackets");
    const OrderedJson* arguments = inner.find("arguments");
    if (arguments == nullptr || arguments->is_object()) continue;
    if (!arguments->is_string()) inner.refuse("arguments", "a string with a JSON object");
    const auto& text = arguments->get_ref<const std::string&>();
    if (text.empty()) continue;
    try {
      if (parse_ordered_json(text, "arguments", kArguments).is_object()) continue;
    } catch (const Error&) {
      inner.refuse("arguments", "a string with a JSON object");
    }
    inner.refuse("arguments", "a string with a JSON object");
  }
}

void prepare(OrderedJson& message, const std::string& path, bool last) {
  Fields fields(message, path);
  const OrderedJson* role = fields.find("role");
  if (role == nullptr || !role->is_string()) fields.refuse("role", "system, developer, user, assistant or tool");
  const std::string name = role->get<std::string>();
  if (name == "function") fields.refuse("role", "\"tool\" (functions are not supported, use tools)");
  fields.unsupported("function_call", "use tool_calls");
  fields.unsupported("audio", "this model takes text and images only");
  if (const OrderedJson* content = fields.find("content")) check_parts(*content, path + ".content");
  if (const OrderedJson* calls = fields.find("tool_calls")) check_calls(*calls, path + ".tool_calls");
  const bool has_id = fields.string("tool_call_id", 1024).value_or("") != "";
  if (name == "tool" && !has_id) fields.refuse("tool_call_id", "the id of the call that it answers");
  const bool prefix = fields.boolean("prefix").value_or(false);
  const bool open = fields.boolean("wo_eos").value_or(false);
  const OrderedJson* reasoning = fields.find("reasoning");
  if (name == "assistant" && last && !prefix && !open) {
    throw invalid_param(path + ".role", "a message to answer last, or an assistant's with \"prefix\": true",
                        "an assistant's");
  }
  if (prefix && !(name == "assistant" && last)) fields.refuse("prefix", "it only in a last message of role assistant");

  // From here on the message is changed.
  const bool rename = reasoning != nullptr && reasoning->is_string() && fields.find("reasoning_content") == nullptr;
  if (rename) {
    std::string text = reasoning->get<std::string>();
    message["reasoning_content"] = std::move(text);
  }
  if (name == "developer") message["role"] = "system";
  if (prefix) message["wo_eos"] = true;
}

}  // namespace

std::vector<ChatMessage> read_messages(OrderedJson messages, const OrderedJson& tools) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) throw invalid_param(path, "an object", describe_value(messages[i]));
    prepare(messages[i], path, i + 1 == messages.size());
  }
  try {
    return parse_messages(messages, tools);
  } catch (const Error& error) {
    throw invalid_request(error);
  }
}

}  // namespace mdi
