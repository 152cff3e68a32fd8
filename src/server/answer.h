// What the engine generates for one request, as an API hands it on: reasoning, content and tool calls of each sample,
// how it ended, and what it used.
//
// Stop strings of a conversation end the content: reasoning and tool calls are not searched. The content ends before
// the stop string, which is never shown, not even in part.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/stop_strings.h"
#include "text/chat_parser.h"
#include "text/chat_replay.h"
#include "text/tokenizer.h"

namespace mdi {

enum class Finish : uint8_t {
  kStop,        // the model ended it
  kStopString,  // AnswerPart::stop says which; in the middle of it is nothing left to say
  kLength,      // max_tokens
  kToolCalls,   // the model ended it, with tool calls
  kCancelled,   // the client is gone, or the server is ending
  kDeadline,    // ServiceOptions::timeout
  kError,       // AnswerPart::error; also a watchdog's
};

struct AnswerUsage {
  int32_t prompt_tokens = 0, cached_tokens = 0;
  int32_t completion_tokens = 0;  // up to the end of what is shown, all that was generated for it
  int32_t reasoning_tokens = 0;   // of these, up to </think>
};

// A generated token, without end-of-sentence and </think>.
struct AnswerToken {
  int32_t id = 0;
  bool reasoning = false;
  Logprobs logprobs;  // where the request wants them
};

// News of one sample. The parts of all calls, put together, are the answer; they do not depend on how tokens arrived.
struct AnswerPart {
  int32_t sample = 0;
  std::vector<ChatEvent> events;    // of a conversation
  std::string text;                 // of a plain prompt
  std::vector<AnswerToken> tokens;  // only where the request wants log-probabilities
  std::optional<Finish> finish;     // the last part of this sample
  std::string stop;                 // kStopString of a conversation: which
  std::string error;                // kError
  bool invalid = false;             // kError: by the request's own fault, and `error` is an mdi::Error's text
  AnswerUsage usage;                // of this sample, up to here
  AnswerUsage total;                // of all samples, up to here; the prompt counts once
  bool last = false;                // the last part of the request
  bool silence = false;             // no news, for a while: a stream says that it is alive; everything else is empty
};

struct AnswerSettings {
  bool chat = true;        // parse tokens; else take the engine's text
  bool reasoning = false;  // the prompt ended with <think>
  TurnPlace place = kFirstPlace;
  int32_t n = 1;
  std::vector<std::string> stop;  // of a conversation; the engine has those of a plain prompt
  bool logprobs = false;
};

// Of one request; from one thread at a time. The tokenizer and the memory outlive it.
class Answer {
 public:
  // memory: where answers that were given as a whole are remembered, so that they come back as the same tokens; null:
  // nowhere.
  Answer(const Tokenizer& tokenizer, ReplayMemory* memory, AnswerSettings settings);
  Answer(Answer&&) noexcept;
  ~Answer();

  // nullopt: nothing new. After a sample's finish its events are ignored, so what a stop string ends here may still run
  // in the engine: finished() says that the request can be cancelled.
  std::optional<AnswerPart> take(const Event& event);

  bool finished() const { return open_ == 0; }

 private:
  struct Sample;

  void parse(Sample& sample, const Event& event, AnswerPart& part);
  void show(Sample& sample, std::vector<ChatEvent> events, AnswerPart& part);
  void end(Sample& sample, const Event& event, AnswerPart& part);
  void remember_cut(const Sample& sample);

  const Tokenizer& tokenizer_;
  ReplayMemory* memory_;
  AnswerSettings settings_;
  int32_t eos_, think_end_;
  std::vector<std::unique_ptr<Sample>> samples_;
  int32_t open_;
};

}  // namespace mdi
