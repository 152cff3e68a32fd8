#include "text/chat_render.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {
namespace {

// The tool section (spec section 4); ｜DSML｜ and the think tags in it are control tokens, as the reference's are.
constexpr std::string_view kToolsBefore =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsAfter =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

constexpr JsonLimits kArguments{size_t{64} << 20, 64};

class Writer {
 public:
  void text(std::string_view text) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().kind != PromptPiece::Kind::kText) pieces_.emplace_back();
    pieces_.back().text += text;
  }
  void control(std::string_view content) { pieces_.push_back({PromptPiece::Kind::kControl, std::string(content), {}}); }
  void tokens(const std::vector<int32_t>& ids) {
    if (!ids.empty()) pieces_.push_back({PromptPiece::Kind::kTokens, "", ids});
  }
  // The format's own text: the markers in it are control tokens.
  void format(std::string_view text_with_markers) {
    std::string_view rest = text_with_markers;
    while (!rest.empty()) {
      size_t first = rest.size();
      std::string_view found;
      for (const std::string_view m : {marker::kDsml, marker::kThink, marker::kThinkEnd}) {
        if (const size_t at = rest.find(m); at < first) {
          first = at;
          found = m;
        }
      }
      text(rest.substr(0, first));
      if (!found.empty()) control(found);
      rest.remove_prefix(first + found.size());
    }
  }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  std::vector<PromptPiece> pieces_;
};

using CallOrder = std::unordered_map<std::string, size_t>;

// Tool results of one user turn, in the order in which they were asked for; other parts stay where they are.
void sort_tool_results(std::vector<ContentPart>& content, const CallOrder& order) {
  std::vector<ContentPart> results;
  for (ContentPart& part : content) {
    if (part.kind == ContentPart::Kind::kToolResult) results.push_back(std::move(part));
  }
  const auto place = [&](const ContentPart& part) {
    const auto found = order.find(part.text);
    return found == order.end() ? size_t{0} : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const ContentPart& a, const ContentPart& b) { return place(a) < place(b); });
  auto next = results.begin();
  for (ContentPart& part : content) {
    if (part.kind == ContentPart::Kind::kToolResult) part = std::move(*next++);
  }
}

// Tool messages join the user message before them, or become one; users in a row become one message.
std::vector<ChatMessage> merge_messages(std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> merged;
  for (const ChatMessage& message : messages) {
    const bool after_user = !merged.empty() && merged.back().role == Role::kUser;
    if (message.role == Role::kTool) {
      ContentPart result{ContentPart::Kind::kToolResult, message.tool_call_id, message.content};
      if (!after_user) merged.emplace_back();
      merged.back().content.push_back(std::move(result));
    } else if (message.role == Role::kUser && after_user && merged.back().task.empty()) {
      ChatMessage& user = merged.back();
      user.content.insert(user.content.end(), message.content.begin(), message.content.end());
      user.task = message.task;
    } else {
      merged.push_back(message);
    }
  }
  CallOrder order;
  for (ChatMessage& message : merged) {
    if (message.role == Role::kAssistant && !message.tool_calls.empty()) {
      order.clear();
      for (const ToolCall& call : message.tool_calls) order.emplace(call.id, order.size());
    } else if (message.role == Role::kUser) {
      sort_tool_results(message.content, order);
    }
  }
  return merged;
}

class Renderer {
 public:
  Renderer(std::vector<ChatMessage> messages, const ChatOptions& options)
      : messages_(std::move(messages)), options_(options), keep_all_(!options.drop_thinking) {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const Role role = messages_[i].role;
      if (role == Role::kUser || (role == Role::kSystem && i > 0)) last_user_ = i;
      has_user_ |= role == Role::kUser || (role == Role::kSystem && i > 0);
      keep_all_ |= !messages_[i].tools.empty();
    }
  }

  ChatPrompt render() {
    out_.control(marker::kBos);
    if (options_.thinking || (!messages_.empty() && messages_.front().role == Role::kSystem)) {
      out_.control(marker::kSystem);
    }
    if (options_.thinking) {
      out_.text("Reasoning Effort: " + std::to_string(options_.effort) +
                " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    for (size_t i = 0; i < messages_.size(); ++i) {
      message(i);
      if (options_.memory != nullptr) prompt_.place = place_behind(prompt_.place, messages_[i]);
    }
    prompt_.pieces = out_.take();
    const PromptPiece& last = prompt_.pieces.back();
    prompt_.reasoning = last.kind == PromptPiece::Kind::kControl && last.text == marker::kThink;
    return std::move(prompt_);
  }

 private:
  void message(size_t i) {
    const ChatMessage& m = messages_[i];
    switch (m.role) {
      case Role::kSystem:
        if (i > 0) out_.control(marker::kSystem);
        content(m.content);
        system_sections(m);
        if (i > 0 || !m.task.empty()) header(i);
        break;
      case Role::kUser:
      case Role::kTool:  // none are left after merging
        out_.control(marker::kUser);
        content(m.content);
        header(i);
        break;
      case Role::kReminder:
        out_.control(marker::kReminder);
        content(m.content);
        break;
      case Role::kAssistant:
        assistant(i);
        break;
    }
  }

  void system_sections(const ChatMessage& m) {
    if (!m.tools.empty()) {
      out_.text("\n\n");
      out_.format(kToolsBefore);
      const char* between = "";
      for (const std::string& tool : m.tools) {
        out_.text(between);
        out_.text(tool);
        between = "\n";
      }
      out_.text(kToolsAfter);
    }
    if (!m.response_format.empty()) {
      out_.text(kResponseFormat);
      out_.text(m.response_format);
    }
  }

  void content(const std::vector<ContentPart>& parts) {
    const char* between = "";
    for (const ContentPart& part : parts) {
      out_.text(between);
      between = "\n\n";
      switch (part.kind) {
        case ContentPart::Kind::kText:
          out_.text(part.text);
          break;
        case ContentPart::Kind::kImage:
          out_.control(marker::kImage);
          prompt_.images.push_back(part.text);
          break;
        case ContentPart::Kind::kToolResult:
          out_.text("<tool_result>");
          content(part.parts);
          out_.text("</tool_result>");
          break;
        case ContentPart::Kind::kUnsupported:
          out_.text("[Unsupported " + part.text + "]");
          break;
      }
    }
  }

  // What stands between a turn and the answer to it.
  void header(size_t i) {
    const ChatMessage& m = messages_[i];
    if (i + 1 < messages_.size()) {
      const Role next = messages_[i + 1].role;
      if (next != Role::kAssistant && next != Role::kReminder) return;
    }
    const std::string task = "<｜" + m.task + "｜>";
    if (!m.task.empty() && m.task != "action") return out_.control(task);
    out_.control(marker::kAssistant);
    const bool think = options_.thinking && (keep_all_ || i >= last_user_ || !m.task.empty());
    out_.control(think ? marker::kThink : marker::kThinkEnd);
    if (!m.task.empty()) out_.control(task);
  }

  bool keeps_reasoning(size_t i) const {
    const bool after_task = i > 0 && !messages_[i - 1].task.empty();
    return options_.thinking && !after_task && (keep_all_ || !has_user_ || i > last_user_);
  }

  void assistant(size_t i) {
    const ChatMessage& m = messages_[i];
    const bool reasoning = keeps_reasoning(i);
    std::shared_ptr<const GeneratedTurn> same, answer;
    if (options_.memory != nullptr) {
      if (reasoning) same = options_.memory->find(prompt_.place, m, true);
      answer = same != nullptr ? same : options_.memory->find(prompt_.place, m, false);
    }
    if (reasoning) {
      if (same != nullptr) {
        out_.tokens(same->reasoning);
      } else {
        out_.text(m.reasoning);
      }
      out_.control(marker::kThinkEnd);
    }
    if (answer != nullptr) {
      out_.tokens(answer->rest);
      out_.text(answer->tail);
    } else {
      content(m.content);
      tool_calls(m.tool_calls, i);
    }
    if (!m.no_eos) out_.control(marker::kEos);
  }

  // Spec section 5.
  void tool_calls(const std::vector<ToolCall>& calls, size_t i) {
    if (calls.empty()) return;
    out_.format("\n\n<｜DSML｜ calls>\n");
    for (size_t c = 0; c < calls.size(); ++c) {
      if (c > 0) out_.text("\n");
      out_.format("<｜DSML｜ invoke name=\"");
      out_.text(calls[c].name);
      out_.text("\">\n");
      arguments(calls[c], "message " + std::to_string(i) + ", tool call " + std::to_string(c));
      out_.format("\n</｜DSML｜ invoke>");
    }
    out_.format("\n</｜DSML｜ calls>");
  }

  void arguments(const ToolCall& call, const std::string& where) {
    if (call.arguments.empty()) return;
    const JsonTree parsed(parse_ordered_json(call.arguments, where + ": arguments", kArguments));
    if (!parsed->is_object()) {
      throw Error(where, "expected the arguments to be a JSON object, found " + printable(call.arguments, 80));
    }
    const char* between = "";
    for (const auto& [key, value] : parsed->get_ref<const OrderedJson::object_t&>()) {
      out_.text(between);
      between = "\n";
      out_.format("<｜DSML｜ parameter name=\"");
      out_.text(key);
      out_.text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
      out_.text(value.is_string() ? value.get_ref<const std::string&>() : python_json(value));
      out_.format("</｜DSML｜ parameter>");
    }
  }

  std::vector<ChatMessage> messages_;
  const ChatOptions& options_;
  bool keep_all_;
  bool has_user_ = false;
  size_t last_user_ = 0;
  Writer out_;
  ChatPrompt prompt_;
};

}  // namespace

ChatPrompt render_chat(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (options.effort < 1 || options.effort > 100) {
    throw Error("reasoning effort", "expected 1 to 100, found " + std::to_string(options.effort));
  }
  return Renderer(merge_messages(messages), options).render();
}

EncodedChat encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, const ChatOptions& options) {
  ChatPrompt prompt = render_chat(messages, options);
  EncodedChat encoded;
  encoded.reasoning = prompt.reasoning;
  encoded.place = prompt.place;
  for (PromptPiece& piece : prompt.pieces) {
    if (piece.kind == PromptPiece::Kind::kText) piece.ids = tokenizer.encode(piece.text, Markers::kText);
    if (piece.kind == PromptPiece::Kind::kControl) {
      const auto id = tokenizer.marker(piece.text);
      if (!id) throw Error("chat format", "the tokenizer has no token '" + piece.text + "'");
      if (piece.text == marker::kImage) {
        encoded.images.push_back({encoded.ids.size(), std::move(prompt.images[encoded.images.size()])});
      }
      piece.ids = {*id};
    }
    encoded.ids.insert(encoded.ids.end(), piece.ids.begin(), piece.ids.end());
  }
  return encoded;
}

}  // namespace mdi
