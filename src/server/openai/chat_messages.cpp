#include "server/openai/chat_messages.h"

#include <set>

#include "core/error.h"
#include "server/answerable.h"

namespace mdi {

namespace {

constexpr JsonLimits kArguments{size_t{16} << 20, kMaxBodyDepth, kMaxBodyValues};

// Parts that the model cannot take are an error here: the format would only name them to the model.
void check_parts(const OrderedJson& content, const std::string& path) {
  if (!content.is_array()) return;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], path + "[" + std::to_string(i) + "]");
    const auto type = part.word("type", {"text", "image_url", "image"});
    if (!type) part.refuse("type", "\"text\" or \"image_url\"");
    if (*type != "text") continue;  // images.h reads the others
    part.ignore({"text", "cache_control"});
    part.done();
  }
}

// `ids`: of all calls so far.
void check_calls(const OrderedJson& calls, const std::string& path, std::set<std::string>& ids) {
  if (!calls.is_array()) return;
  std::set<std::string> own;
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string where = path + "[" + std::to_string(i) + "]";
    Fields call(calls[i], where);
    const auto type = call.find("type");
    if (type != nullptr && *type != "function") call.refuse("type", "\"function\"");
    const std::string id = call.string("id", 1024).value_or("");
    if (!id.empty() && !own.insert(id).second) call.refuse("id", "another id than the message's other calls");
    call.ignore({"index"});  // of a call in a stream
    const OrderedJson* function = call.object("function");
    if (function == nullptr) call.refuse("function", "an object with name and arguments");
    call.done();
    Fields inner(*function, where + ".function");
    const auto name = inner.string("name", 1024);
    if (!name || name->empty()) inner.refuse("name", "a name");
    // It stands between quotes in the prompt; the marker is a control token there, so only a tag's end could confuse.
    if (name->find_first_of("\"<>\n") != std::string::npos) inner.refuse("name", "a name without quotes or brackets");
    const OrderedJson* arguments = inner.find("arguments");
    inner.ignore({"parsed_arguments"});  // a client library's own reading of them
    inner.done();
    if (arguments == nullptr || arguments->is_object()) continue;
    if (!arguments->is_string()) inner.refuse("arguments", "a string with a JSON object");
    const auto& text = arguments->get_ref<const std::string&>();
    if (text.empty()) continue;
    try {
      if (JsonTree(parse_ordered_json(text, "arguments", kArguments))->is_object()) continue;
    } catch (const Error&) {
      inner.refuse("arguments", "a string with a JSON object");
    }
    inner.refuse("arguments", "a string with a JSON object");
  }
  ids.merge(own);
}

std::string read_role(Fields& fields) {
  const OrderedJson* role = fields.find("role");
  if (role != nullptr && *role == "function") {
    fields.refuse("role", "\"tool\" (functions are not supported, use tools)");
  }
  const auto name = fields.word("role", {"system", "developer", "user", "assistant", "tool", "latest_reminder"});
  if (!name)
    fields.refuse("role", "\"system\", \"developer\", \"user\", \"assistant\", \"tool\" or \"latest_reminder\"");
  return *name;
}

void prepare(OrderedJson& message, const std::string& path, bool last, std::set<std::string>& ids) {
  Fields fields(message, path);
  const std::string name = read_role(fields);
  fields.unsupported("function_call", "use tool_calls");
  fields.unsupported("audio", "this model takes text and images only");
  if (const OrderedJson* content = fields.find("content")) check_parts(*content, path + ".content");
  if (const OrderedJson* calls = fields.find("tool_calls")) check_calls(*calls, path + ".tool_calls", ids);
  const std::string id = fields.string("tool_call_id", 1024).value_or("");
  if (name == "tool" && ids.count(id) == 0) fields.refuse("tool_call_id", "the id of a call of an earlier message");
  const bool prefix = fields.boolean("prefix").value_or(false);
  const bool open = fields.boolean("wo_eos").value_or(false);
  const OrderedJson* reasoning = fields.find("reasoning");
  if (name == "assistant" && last && !prefix && !open) {
    throw invalid_param(path + ".role", "a message to answer last, or an assistant's with \"prefix\": true",
                        "an assistant's");
  }
  if (prefix && !(name == "assistant" && last)) fields.refuse("prefix", "it only in a last message of role assistant");
  // The author's name, what answers carry and clients send back, and what parse_messages reads.
  fields.ignore({"name", "refusal", "annotations", "parsed", "reasoning_content", "tools", "response_format", "task"});
  fields.done();

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

std::vector<ChatMessage> read_messages(const OrderedJson& given, const OrderedJson& tools) {
  JsonTree copy(copy_json(given));
  OrderedJson& messages = *copy;
  std::set<std::string> ids;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string path = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) throw invalid_param(path, "an object", describe_value(messages[i]));
    prepare(messages[i], path, i + 1 == messages.size(), ids);
  }
  try {
    std::vector<ChatMessage> parsed = parse_messages(messages, tools);
    check_answerable(parsed);
    return parsed;
  } catch (const Error& error) {
    throw invalid_request(error);
  }
}

}  // namespace mdi
