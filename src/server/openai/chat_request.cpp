#include "server/openai/chat_request.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/printable.h"
#include "server/openai/chat_messages.h"

namespace mdi {

namespace {

constexpr size_t kMostTools = 128;

// The functions that a request offers; their schemas go to the grammar.
void read_tools(const OrderedJson& tools, GrammarSpec& grammar) {
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    Fields tool(tools[i], path);
    if (!tool.word("type", {"function"})) tool.refuse("type", "\"function\"");
    const OrderedJson* given = tool.object("function");
    if (given == nullptr) tool.refuse("function", "an object with a name");
    tool.done();
    Fields function(*given, path + ".function");
    GrammarTool entry;
    entry.name = function.string("name", 1024).value_or("");
    // Names stand between quotes in the prompt and in what the model writes.
    if (!is_name(entry.name)) function.refuse("name", "1 to 64 letters, digits, _ or -");
    if (!names.insert(entry.name).second) function.refuse("name", "another name than the other tools'");
    function.string("description", 65536);
    if (const OrderedJson* parameters = function.object("parameters")) entry.parameters = python_json(*parameters);
    entry.strict = function.boolean("strict").value_or(false);
    function.done();
    grammar.tools.push_back(std::move(entry));
  }
}

void read_tool_choice(Fields& body, GrammarSpec& grammar) {
  using Choice = GrammarSpec::ToolChoice;
  const OrderedJson* choice = body.find("tool_choice");
  const bool tools = !grammar.tools.empty();
  if (tools) grammar.tool_choice = Choice::kAuto;
  grammar.parallel = body.boolean("parallel_tool_calls").value_or(true);
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string word = body.word("tool_choice", {"none", "auto", "required"}).value_or("");
    if (word == "none" && tools) grammar.tool_choice = Choice::kNone;
    if (word != "required") return;
    if (!tools) body.refuse("tool_choice", "\"none\" or \"auto\" where there are no tools");
    grammar.tool_choice = Choice::kRequired;
    return;
  }
  if (!choice->is_object()) body.refuse("tool_choice", "\"none\", \"auto\", \"required\" or a function");
  Fields named(*choice, "tool_choice");
  if (!named.word("type", {"function"})) named.refuse("type", "\"function\"");
  const OrderedJson* function = named.object("function");
  if (function == nullptr) named.refuse("function", "an object with a name");
  named.done();
  Fields inner(*function, "tool_choice.function");
  grammar.tool_name = inner.string("name", 1024).value_or("");
  inner.done();
  const bool known = std::any_of(grammar.tools.begin(), grammar.tools.end(),
                                 [&](const GrammarTool& tool) { return tool.name == grammar.tool_name; });
  if (!known) inner.refuse("name", "the name of one of the tools");
  grammar.tool_choice = Choice::kNamed;
}

// reasoning_effort, thinking and chat_template_kwargs: three ways that clients have to say it.
void read_thinking(Fields& body, const Service& service, Generation& g) {
  g.thinking = service.options().thinking;
  g.effort = service.options().effort;
  if (const OrderedJson* effort = body.find("reasoning_effort")) {
    static const std::pair<const char*, int> kWords[] = {{"minimal", 25}, {"low", 50},   {"medium", 62},
                                                         {"high", 75},    {"xhigh", 90}, {"max", 100}};
    if (effort->is_string()) {
      const auto word = *body.word("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
      g.thinking = word != "none";
      for (const auto& [name, value] : kWords) {
        if (word == name) g.effort = value;
      }
    } else {
      g.effort = static_cast<int>(*body.integer("reasoning_effort", 1, 100));
      g.thinking = true;
    }
  }
  if (const OrderedJson* thinking = body.object("thinking")) {
    Fields fields(*thinking, "thinking");
    const auto type = fields.word("type", {"enabled", "disabled"});
    if (!type) fields.refuse("type", "\"enabled\" or \"disabled\"");
    fields.done();
    g.thinking = *type == "enabled";
  }
  if (const OrderedJson* arguments = body.object("chat_template_kwargs")) {
    Fields fields(*arguments, "chat_template_kwargs");
    for (const char* name : {"thinking", "enable_thinking"}) {
      if (const auto on = fields.boolean(name)) g.thinking = *on;
    }
    fields.done();
  }
}

void read_max_tokens(Fields& body, Generation& g) {
  const auto old_name = body.integer("max_tokens", 1, INT32_MAX);
  const auto new_name = body.integer("max_completion_tokens", 1, INT32_MAX);
  if (old_name && new_name && *old_name != *new_name) {
    body.refuse("max_tokens", "the same number as max_completion_tokens, or one of them alone");
  }
  if (new_name) g.max_tokens_name = "max_completion_tokens";
  if (const auto& most = new_name ? new_name : old_name) g.max_tokens = static_cast<int32_t>(*most);
}

void read_logprobs(Fields& body, Generation& g) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const auto top = body.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wanted) body.refuse("top_logprobs", "it only together with logprobs: true");
  if (wanted) g.logprobs = static_cast<int32_t>(top.value_or(0));
}

void refuse_unsupported(Fields& body) {
  if (const OrderedJson* kinds = body.list("modalities", 0, 16)) {
    for (const OrderedJson& kind : *kinds) {
      if (kind != "text") body.unsupported("modalities", "this model answers with text only");
    }
  }
  if (const OrderedJson* verbosity = body.find("verbosity"); verbosity != nullptr && *verbosity != "medium") {
    body.unsupported("verbosity", "ask for short or long answers in the messages");
  }
  body.unsupported("audio", "this model answers with text only");
  body.unsupported("prediction", "there is no use for predicted outputs");
  body.unsupported("web_search_options", "this server searches nothing");
  body.unsupported("functions", "use tools");
  body.unsupported("function_call", "use tool_choice");
}

}  // namespace

void read_conversation(Fields& body, const Service& service, Generation& g) {
  const OrderedJson* messages = body.list("messages", 1, 10'000);
  if (messages == nullptr) body.refuse("messages", "a list of messages");
  const OrderedJson* tools = body.list("tools", 0, kMostTools);
  if (tools != nullptr) read_tools(*tools, g.grammar);
  read_tool_choice(body, g.grammar);
  read_thinking(body, service, g);
  static const OrderedJson none;
  g.messages = read_messages(*messages, tools != nullptr ? *tools : none);
  ImageReader images(service);
  images.read_all(g.messages, g.messages.size() - messages->size());
  g.images = images.take();
  const OrderedJson* schema = read_format(body, true, g.grammar);
  if (schema == nullptr) return;
  // The format has a place for it, and the model was trained to look there (spec chat-format.md section 3).
  if (g.messages.front().role != Role::kSystem) g.messages.insert(g.messages.begin(), text_message(Role::kSystem, ""));
  if (g.messages.front().response_format.empty()) g.messages.front().response_format = python_json(*schema);
}

ChatRequest parse_chat_request(const OrderedJson& json, const Service& service) {
  ChatRequest request;
  Generation& g = request.generation;
  Fields body(json, "");
  read_common(body, service, g);
  request.stream = read_stream(body, true);
  refuse_unsupported(body);
  read_max_tokens(body, g);
  read_logprobs(body, g);
  read_conversation(body, service, g);
  body.done();
  return request;
}

}  // namespace mdi
