// The grammar of a generated answer, apart from how the input arrives: see chat_parser.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/chat_message.h"

namespace mdi {

struct ChatEvent {
  enum class Kind : uint8_t {
    kReasoning,  // text
    kContent,    // text
    kCallBegin,  // text is the function's name
    kArguments,  // text is the next part of the call's arguments as JSON
    kCallEnd,
  };
  Kind kind;
  size_t call;  // index of the tool call, 0 for reasoning and content
  std::string text;

  bool operator==(const ChatEvent&) const = default;
};

enum class ReplyEnd : uint8_t {
  kStop,  // the model, or a stop text, ended it: what is held back is text
  kCut,   // it would have gone on: what may be part of a tag or of a character is dropped
};

struct ChatReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // without ids: whoever answers the client makes them
  bool complete = false;             // ended with kStop, all tool calls closed
  bool clipped = false;              // a cut fell inside what may be a tag or a character, and that part was dropped
  std::string problem;               // what was wrong with the tags, the first of it; empty if nothing was
  // The tokens as generated, without </think> and eos (ChatParser only).
  std::vector<int32_t> reasoning_ids, rest_ids;
  std::string tail;  // of the content: what stands behind the tokens, where an answer was cut within one
};

class ReplyMachine {
 public:
  // Bytes that UTF-8 does not have stand for the markers in the input.
  static constexpr char kDsml = '\xFF';
  static constexpr char kThinkEnd = '\xFE';

  explicit ReplyMachine(bool reasoning) : state_(reasoning ? State::kReasoning : State::kContent) {}

  // Valid UTF-8 with markers in between. Time is linear in all that was pushed.
  void push(std::string_view input, std::vector<ChatEvent>& events);
  void finish(ReplyEnd end, std::vector<ChatEvent>& events);

  bool reasoning() const { return state_ == State::kReasoning; }
  bool done() const { return state_ == State::kDone; }
  const ChatReply& reply() const { return reply_; }
  ChatReply& reply() { return reply_; }

 private:
  enum class State : uint8_t {
    kReasoning,
    kContent,
    kBetweenCalls,
    kCallName,
    kSkippedCall,  // a call whose name could not be read
    kInCall,
    kParameterName,
    kParameterValue,
    kSkippedValue,  // a parameter that repeats another's name, or whose name could not be read
    kAfterCalls,
    kDone,
  };
  using Stops = std::initializer_list<std::string_view>;
  static constexpr size_t kNoStop = SIZE_MAX;

  // Reads text up to the first stop, and the stop, and appends the text to `text`. Returns the stop's index; kNoStop
  // when all but a possible beginning of a stop was read.
  size_t take(Stops stops, std::string& text);
  bool step(std::vector<ChatEvent>& events);  // false: more input is needed
  void put_back(std::string_view stop) { at_ -= stop.size(); }
  void read_call_name(std::vector<ChatEvent>& events);
  void read_parameter_name(std::vector<ChatEvent>& events);
  void begin_call(std::string name, std::vector<ChatEvent>& events);
  void end_call(std::vector<ChatEvent>& events);
  void begin_parameter(std::string name, bool is_string, std::vector<ChatEvent>& events);
  void recover_parameter(std::vector<ChatEvent>& events);
  void end_parameter(std::vector<ChatEvent>& events);
  void add_value(std::string_view text, std::vector<ChatEvent>& events);
  void emit(ChatEvent::Kind kind, std::string text, std::vector<ChatEvent>& events);
  void expect_blank(std::string_view text);
  void finish_open(std::vector<ChatEvent>& events);
  void blame(const char* problem);

  State state_;
  std::string input_;
  size_t at_ = 0;                          // how far input_ has been read
  std::string header_;                     // of the call or parameter whose name is being read
  std::unordered_set<std::string> names_;  // of the current call's parameters
  bool string_ = false;                    // the current parameter's value is a string
  size_t value_begin_ = 0;                 // where it starts in the call's arguments
  ChatReply reply_;
};

}  // namespace mdi
