#include "server/anthropic/messages_request.h"

#include <sodium.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "server/anthropic/blocks.h"
#include "server/fields.h"

namespace mdi {

namespace {

constexpr size_t kMostTools = 128, kMostMessages = 100'000;

// The functions that a request offers; the prompt shows them in the form that the model was trained on.
std::vector<std::string> read_tools(const OrderedJson& tools, GrammarSpec& grammar) {
  std::vector<std::string> shown;
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    Fields tool(tools[i], path);
    const OrderedJson* type = tool.find("type");
    if (type != nullptr && *type != "custom") {
      tool.refuse("type", "\"custom\": this server runs no tools of its own");
    }
    GrammarTool entry;
    entry.name = tool.string("name", 1024).value_or("");
    const bool plain = std::all_of(entry.name.begin(), entry.name.end(),
                                   [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
    if (entry.name.empty() || entry.name.size() > 128 || !plain) {
      tool.refuse("name", "1 to 128 letters, digits, _ or -");
    }
    if (!names.insert(entry.name).second) tool.refuse("name", "another name than the other tools'");
    const auto description = tool.string("description", 65536);
    const OrderedJson* schema = tool.object("input_schema");
    if (schema == nullptr) tool.refuse("input_schema", "a JSON Schema");
    entry.parameters = python_json(*schema);
    entry.strict = tool.boolean("strict").value_or(false);
    tool.ignore({"cache_control", "eager_input_streaming"});
    tool.unsupported("input_examples", "put them into the description");
    tool.unsupported("defer_loading", "all tools are shown to the model");
    tool.unsupported("allowed_callers", "only the model calls tools");
    tool.done();

    const std::string says = description ? ", \"description\": " + python_json(*description) : "";
    shown.push_back("{\"name\": " + python_json(entry.name) + says + ", \"parameters\": " + entry.parameters + "}");
    grammar.tools.push_back(std::move(entry));
  }
  return shown;
}

void read_tool_choice(Fields& body, GrammarSpec& grammar) {
  using Choice = GrammarSpec::ToolChoice;
  if (!grammar.tools.empty()) grammar.tool_choice = Choice::kAuto;
  const OrderedJson* value = body.object("tool_choice");
  if (value == nullptr) return;
  Fields choice(*value, "tool_choice");
  const auto type = choice.word("type", {"auto", "any", "tool", "none"});
  if (!type) choice.refuse("type", "\"auto\", \"any\", \"tool\" or \"none\"");
  grammar.parallel = !choice.boolean("disable_parallel_tool_use").value_or(false);
  if (*type == "tool") {
    grammar.tool_name = choice.string("name", 1024).value_or("");
    const bool known = std::any_of(grammar.tools.begin(), grammar.tools.end(),
                                   [&](const GrammarTool& tool) { return tool.name == grammar.tool_name; });
    if (!known) choice.refuse("name", "the name of one of the tools");
    grammar.tool_choice = Choice::kNamed;
  }
  choice.done();
  if (grammar.tools.empty()) {
    if (*type == "any") choice.refuse("type", "\"auto\" or \"none\" where there are no tools");
    return;
  }
  if (*type == "any") grammar.tool_choice = Choice::kRequired;
  if (*type == "none") grammar.tool_choice = Choice::kNone;
}

// thinking and output_config.effort. Without `thinking` there is none, as in Anthropic's API.
void read_thinking(Fields& body, std::optional<int64_t> max_tokens, const Service& service, Generation& g) {
  g.thinking = false;
  g.effort = service.options().effort;
  const OrderedJson* value = body.object("thinking");
  if (value == nullptr) return;
  Fields thinking(*value, "thinking");
  const auto type = thinking.word("type", {"enabled", "disabled", "adaptive"});
  if (!type) thinking.refuse("type", "\"enabled\", \"disabled\" or \"adaptive\"");
  g.thinking = *type != "disabled";
  const auto budget = thinking.integer("budget_tokens", 1024, INT32_MAX);
  if (*type == "enabled") {
    if (!budget) thinking.refuse("budget_tokens", "a whole number from 1024 on");
    if (max_tokens && *budget >= *max_tokens) {
      thinking.refuse("budget_tokens", "less than max_tokens (" + std::to_string(*max_tokens) + ")");
    }
    g.effort = effort_of_budget(*budget);
  } else if (budget) {
    thinking.refuse("budget_tokens", "it only with type \"enabled\"");
  }
  // A summary is nothing that the model could go on from, and what is left out could not be sent back.
  thinking.ignore({"display"});
  thinking.done();
}

// output_config; returns the JSON Schema that the prompt shows (null: none).
const OrderedJson* read_output(Fields& body, Generation& g) {
  const OrderedJson* value = body.object("output_config");
  if (value == nullptr) return nullptr;
  Fields output(*value, "output_config");
  static const std::pair<const char*, int> kWords[] = {
      {"low", 50}, {"medium", 62}, {"high", 75}, {"xhigh", 90}, {"max", 100}};
  if (const auto word = output.word("effort", {"low", "medium", "high", "xhigh", "max"})) {
    for (const auto& [name, effort] : kWords) {
      if (*word == name) g.effort = effort;
    }
  }
  const OrderedJson* shown = nullptr;
  if (const OrderedJson* format = output.object("format")) {
    Fields fields(*format, "output_config.format");
    if (!fields.word("type", {"json_schema"})) fields.refuse("type", "\"json_schema\"");
    const OrderedJson* schema = fields.object("schema");
    if (schema == nullptr) fields.refuse("schema", "a JSON Schema");
    fields.ignore({"name"});
    fields.done();
    g.grammar.kind = GrammarSpec::Kind::kJsonSchema;
    g.grammar.schema = python_json(*schema);
    g.grammar.strict = true;
    shown = schema;
  }
  output.done();
  return shown;
}

void read_sampling(Fields& body, const Service& service, Generation& g) {
  const RequestLimits limits;
  g.stop = body.strings("stop_sequences", static_cast<size_t>(limits.max_stop_strings),
                        static_cast<size_t>(limits.max_stop_string_bytes));
  SamplingParams& s = g.sampling;
  randombytes_buf(&s.seed, sizeof(s.seed));
  s.temperature = static_cast<float>(body.number("temperature", 0, 1).value_or(service.options().temperature));
  s.top_p = static_cast<float>(body.number("top_p", 0, 1).value_or(service.options().top_p));
  // 0 is within the API's range; it means the most likely token, as the smallest number above it does.
  if (!(s.top_p > 0)) s.top_p = std::numeric_limits<float>::min();
  s.top_k = static_cast<int32_t>(body.integer("top_k", 0, INT32_MAX).value_or(0));
}

// What makes the prompt.
void read_prompt(Fields& body, std::optional<int64_t> max_tokens, const Service& service, const ThinkingSigner& signer,
                 MessagesRequest& request) {
  Generation& g = request.generation;
  const auto model = body.string("model", 1024);
  if (!model) body.refuse("model", "the name of a model");
  service.check_model(*model);
  const OrderedJson* messages = body.list("messages", 1, kMostMessages);
  if (messages == nullptr) body.refuse("messages", "a list of messages");
  const OrderedJson* tools = body.list("tools", 0, kMostTools);
  std::vector<std::string> shown;
  if (tools != nullptr) shown = read_tools(*tools, g.grammar);
  read_tool_choice(body, g.grammar);
  read_thinking(body, max_tokens, service, g);
  const OrderedJson* schema = read_output(body, g);

  ImageReader images(service);
  Conversation conversation = read_blocks(body.find("system"), *messages, images, signer);
  g.messages = std::move(conversation.messages);
  g.images = images.take();
  request.edited_thinking = conversation.edited_thinking;
  if (shown.empty() && schema == nullptr) return;
  // Tools and schema have their place behind the system prompt (spec chat-format.md section 3).
  if (g.messages.front().role != Role::kSystem) g.messages.insert(g.messages.begin(), text_message(Role::kSystem, ""));
  g.messages.front().tools = std::move(shown);
  if (schema != nullptr) g.messages.front().response_format = python_json(*schema);
}

void ignore_bookkeeping(Fields& body) {
  body.ignore({"cache_control", "metadata", "service_tier", "inference_geo", "speed", "diagnostics", "user_profile_id",
               "workspace_id"});
  body.unsupported("container", "this server runs no code");
  body.unsupported("mcp_servers", "this server calls nothing");
  body.unsupported("context_management", "send the messages that the model shall see");
}

}  // namespace

int effort_of_budget(int64_t tokens) {
  const double steps = std::log2(static_cast<double>(std::max<int64_t>(tokens, 1)) / 1024) / 2;
  return static_cast<int>(std::clamp(std::lround(25 + 25 * steps), 1L, 100L));
}

MessagesRequest parse_messages_request(const OrderedJson& json, const Service& service, const ThinkingSigner& signer) {
  MessagesRequest request;
  Fields body(json, "");
  const auto most = body.integer("max_tokens", 1, INT32_MAX);
  if (!most) body.refuse("max_tokens", "a whole number from 1 on");
  request.generation.max_tokens = static_cast<int32_t>(*most);
  request.stream = body.boolean("stream").value_or(false);
  read_sampling(body, service, request.generation);
  read_prompt(body, most, service, signer, request);
  ignore_bookkeeping(body);
  body.done();
  return request;
}

MessagesRequest parse_count_request(const OrderedJson& json, const Service& service, const ThinkingSigner& signer) {
  MessagesRequest request;
  Fields body(json, "");
  read_prompt(body, std::nullopt, service, signer, request);
  ignore_bookkeeping(body);
  body.done();
  return request;
}

}  // namespace mdi
