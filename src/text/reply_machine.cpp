#include "text/reply_machine.h"

#include <algorithm>

#include "text/ordered_json.h"

namespace mdi {
namespace {

#define D "\xFF"
constexpr std::string_view kThinkClose = "\xFE";
constexpr std::string_view kCalls = "\n\n<" D " calls";
constexpr std::string_view kCallsEnd = "</" D " calls";
constexpr std::string_view kCall = "<" D " invoke";
constexpr std::string_view kCallEnd = "</" D " invoke";
constexpr std::string_view kParameter = "<" D " parameter";
constexpr std::string_view kParameterEnd = "</" D " parameter>";
constexpr std::string_view kTag = "<" D;
constexpr std::string_view kEndTag = "</" D;
#undef D
constexpr std::string_view kNameEnd = "\">";
constexpr std::string_view kStringName = "\" string=\"true\">";
constexpr std::string_view kJsonName = "\" string=\"false\">";
constexpr std::string_view kName = "name=\"";

// A marker that turned out to be no tag is the text that it looks like.
std::string spell_markers(std::string_view text) {
  std::string spelled;
  for (const char c : text) {
    if (c == ReplyMachine::kDsml) {
      spelled += "｜DSML｜";
    } else if (c == ReplyMachine::kThinkEnd) {
      spelled += "</think>";
    } else {
      spelled += c;
    }
  }
  return spelled;
}

// What follows `name="` behind white space only; npos when the header does not start so.
size_t find_name(std::string_view header) {
  const size_t begin = header.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || header.substr(begin, kName.size()) != kName) return std::string_view::npos;
  return begin + kName.size();
}

}  // namespace

size_t ReplyMachine::take(Stops stops, std::string& text) {
  const size_t begin = at_;
  for (; at_ < input_.size(); ++at_) {
    const std::string_view rest = std::string_view(input_).substr(at_);
    size_t index = 0;
    for (const std::string_view stop : stops) {
      if (rest.front() == stop.front() && rest.substr(0, stop.size()) == stop.substr(0, rest.size())) {
        text.append(input_, begin, at_ - begin);
        if (rest.size() < stop.size()) return kNoStop;
        at_ += stop.size();
        return index;
      }
      ++index;
    }
  }
  text.append(input_, begin);
  return kNoStop;
}

void ReplyMachine::push(std::string_view input, std::vector<ChatEvent>& events) {
  if (state_ == State::kDone) return;
  input_ += input;
  while (step(events)) {
  }
  input_.erase(0, at_);
  at_ = 0;
}

bool ReplyMachine::step(std::vector<ChatEvent>& events) {
  std::string text;
  size_t stop = kNoStop;
  switch (state_) {
    case State::kReasoning:
      stop = take({kThinkClose}, text);
      emit(ChatEvent::Kind::kReasoning, spell_markers(text), events);
      if (stop == 0) state_ = State::kContent;
      break;
    case State::kContent:
      stop = take({kCalls}, text);
      emit(ChatEvent::Kind::kContent, spell_markers(text), events);
      if (stop == 0) state_ = State::kBetweenCalls;
      break;
    case State::kBetweenCalls:
      stop = take({kCall, kCallsEnd}, text);
      expect_blank(text);
      header_.clear();
      if (stop != kNoStop) state_ = stop == 0 ? State::kCallName : State::kAfterCalls;
      break;
    case State::kCallName:
      stop = take({kNameEnd, kTag, kEndTag}, header_);
      if (stop == 0) read_call_name(events);
      if (stop == 1 || stop == 2) {
        put_back(stop == 1 ? kTag : kEndTag);
        blame("a tool call without a name");
        state_ = State::kSkippedCall;
      }
      break;
    case State::kSkippedCall:
      stop = take({kCallEnd, kCall, kCallsEnd}, text);
      header_.clear();
      if (stop == 0) state_ = State::kBetweenCalls;
      if (stop == 1) state_ = State::kCallName;
      if (stop == 2) state_ = State::kAfterCalls;
      break;
    case State::kInCall:
      stop = take({kParameter, kCallEnd, kCall, kCallsEnd}, text);
      expect_blank(text);
      header_.clear();
      if (stop == 0) state_ = State::kParameterName;
      if (stop == 2 || stop == 3) blame("a tool call that is not closed");
      if (stop != 0 && stop != kNoStop) end_call(events);
      if (stop == 1) state_ = State::kBetweenCalls;
      if (stop == 2) state_ = State::kCallName;
      if (stop == 3) state_ = State::kAfterCalls;
      break;
    case State::kParameterName:
      stop = take({kStringName, kJsonName, kTag, kEndTag}, header_);
      if (stop == 0 || stop == 1) {
        string_ = stop == 0;
        read_parameter_name(events);
      } else if (stop != kNoStop) {
        put_back(stop == 2 ? kTag : kEndTag);
        recover_parameter(events);
      }
      break;
    case State::kParameterValue:
      stop = take({kParameterEnd}, text);
      add_value(spell_markers(text), events);
      if (stop == 0) end_parameter(events);
      break;
    case State::kSkippedValue:
      stop = take({kParameterEnd}, text);
      if (stop == 0) state_ = State::kInCall;
      break;
    case State::kAfterCalls:
      text = input_.substr(at_);
      at_ = input_.size();
      expect_blank(text);
      break;
    case State::kDone:
      break;
  }
  return stop != kNoStop;
}

void ReplyMachine::read_call_name(std::vector<ChatEvent>& events) {
  const size_t name = find_name(header_);
  if (name == std::string::npos) {
    blame("a tool call without a name");
    state_ = State::kSkippedCall;
    return;
  }
  begin_call(spell_markers(std::string_view(header_).substr(name)), events);
}

void ReplyMachine::read_parameter_name(std::vector<ChatEvent>& events) {
  const size_t name = find_name(header_);
  if (name == std::string::npos) {
    blame("a parameter without a name");
    state_ = State::kSkippedValue;
    return;
  }
  begin_parameter(spell_markers(std::string_view(header_).substr(name)), string_, events);
}

// A parameter tag without a proper string="...": its name still ends at a quote and the tag at a bracket. The value can
// only be taken for text.
void ReplyMachine::recover_parameter(std::vector<ChatEvent>& events) {
  blame("a parameter that does not say whether it is a string");
  const std::string_view header = header_;
  const size_t name = find_name(header);
  const size_t quote = name == std::string_view::npos ? name : header.find('"', name);
  const size_t bracket = quote == std::string_view::npos ? quote : header.find('>', quote);
  if (bracket == std::string_view::npos) {
    state_ = State::kSkippedValue;
    return;
  }
  begin_parameter(spell_markers(header.substr(name, quote - name)), true, events);
  if (state_ == State::kParameterValue) add_value(spell_markers(header.substr(bracket + 1)), events);
}

void ReplyMachine::begin_call(std::string name, std::vector<ChatEvent>& events) {
  reply_.tool_calls.push_back({"", name, ""});
  names_.clear();
  emit(ChatEvent::Kind::kCallBegin, std::move(name), events);
  state_ = State::kInCall;
}

void ReplyMachine::end_call(std::vector<ChatEvent>& events) {
  emit(ChatEvent::Kind::kArguments, names_.empty() ? "{}" : "}", events);
  emit(ChatEvent::Kind::kCallEnd, "", events);
}

void ReplyMachine::begin_parameter(std::string name, bool is_string, std::vector<ChatEvent>& events) {
  if (names_.count(name) != 0) {
    blame("two parameters of one name");
    state_ = State::kSkippedValue;
    return;
  }
  string_ = is_string;
  std::string opening = names_.empty() ? "{" : ", ";
  append_python_json_string(name, opening);
  opening += string_ ? ": \"" : ": ";
  names_.insert(std::move(name));
  emit(ChatEvent::Kind::kArguments, std::move(opening), events);
  value_begin_ = reply_.tool_calls.back().arguments.size();
  state_ = State::kParameterValue;
}

void ReplyMachine::end_parameter(std::vector<ChatEvent>& events) {
  if (string_) {
    emit(ChatEvent::Kind::kArguments, "\"", events);
  } else {
    const std::string& arguments = reply_.tool_calls.back().arguments;
    const auto begin = arguments.begin() + static_cast<std::ptrdiff_t>(value_begin_);
    if (!nlohmann::json::accept(begin, arguments.end())) blame("a value that is no JSON");
  }
  state_ = State::kInCall;
}

void ReplyMachine::add_value(std::string_view text, std::vector<ChatEvent>& events) {
  std::string json;
  if (string_) {
    append_python_json_string_inside(text, json);
  } else {
    json = text;
  }
  emit(ChatEvent::Kind::kArguments, std::move(json), events);
}

void ReplyMachine::emit(ChatEvent::Kind kind, std::string text, std::vector<ChatEvent>& events) {
  const bool is_text =
      kind == ChatEvent::Kind::kReasoning || kind == ChatEvent::Kind::kContent || kind == ChatEvent::Kind::kArguments;
  if (is_text && text.empty()) return;
  if (kind == ChatEvent::Kind::kReasoning) reply_.reasoning += text;
  if (kind == ChatEvent::Kind::kContent) reply_.content += text;
  if (kind == ChatEvent::Kind::kArguments) reply_.tool_calls.back().arguments += text;
  const size_t call = reply_.tool_calls.empty() ? 0 : reply_.tool_calls.size() - 1;
  if (is_text && !events.empty() && events.back().kind == kind && events.back().call == call) {
    events.back().text += text;
  } else {
    events.push_back({kind, call, std::move(text)});
  }
}

void ReplyMachine::expect_blank(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n>") != std::string_view::npos) blame("text between the tags of tool calls");
}

void ReplyMachine::blame(const char* problem) {
  if (reply_.problem.empty()) reply_.problem = problem;
}

// The end of an answer that the model took for whole: what is held back without a marker in it cannot become a tag any
// more, and calls are closed so that their arguments are JSON.
void ReplyMachine::finish_open(std::vector<ChatEvent>& events) {
  const bool in_tag = input_.find(kDsml) != std::string::npos;
  if (state_ == State::kReasoning || state_ == State::kAfterCalls) return;
  if (state_ == State::kContent) {
    if (in_tag) {
      blame("the end inside a tag");
    } else {
      emit(ChatEvent::Kind::kContent, input_, events);
    }
    return;
  }
  blame("the end inside a tool call");
  if (state_ == State::kParameterValue) {
    if (!in_tag) add_value(input_, events);
    end_parameter(events);
  }
  const bool call_open = state_ == State::kInCall || state_ == State::kParameterName || state_ == State::kSkippedValue;
  if (call_open) end_call(events);
}

void ReplyMachine::finish(ReplyEnd end, std::vector<ChatEvent>& events) {
  if (state_ == State::kDone) return;
  // Nothing could follow closed tool calls, so a cut behind them takes nothing away.
  reply_.complete = end == ReplyEnd::kStop || state_ == State::kAfterCalls;
  if (end == ReplyEnd::kStop) {
    finish_open(events);
  } else {
    reply_.clipped |= !input_.empty();
  }
  input_.clear();
  state_ = State::kDone;
}

}  // namespace mdi
