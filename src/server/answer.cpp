#include "server/answer.h"

#include <algorithm>
#include <utility>

#include "text/chat_render.h"

namespace mdi {

struct Answer::Sample {
  Sample(const Tokenizer& tokenizer, const AnswerSettings& settings)
      : parser(tokenizer, settings.reasoning), stops(settings.stop), reasoning(settings.reasoning) {}

  ChatParser parser;
  StopStrings stops;
  bool reasoning;       // before </think>
  std::string content;  // that was shown, where there are stop strings
  bool ended = false;
  AnswerUsage usage;
};

Answer::Answer(const Tokenizer& tokenizer, ReplayMemory* memory, AnswerSettings settings)
    : tokenizer_(tokenizer),
      memory_(memory),
      settings_(std::move(settings)),
      eos_(tokenizer.marker(marker::kEos).value_or(-1)),
      think_end_(tokenizer.marker(marker::kThinkEnd).value_or(-1)),
      open_(settings_.n) {
  for (int32_t i = 0; i < settings_.n; ++i) samples_.push_back(std::make_unique<Sample>(tokenizer_, settings_));
}

Answer::Answer(Answer&&) noexcept = default;
Answer::~Answer() = default;

std::optional<AnswerPart> Answer::take(const Event& event) {
  Sample& sample = *samples_.at(static_cast<size_t>(event.sample));
  if (sample.ended) return std::nullopt;
  AnswerPart part;
  part.sample = event.sample;
  sample.usage.prompt_tokens = event.usage.prompt_tokens;
  sample.usage.cached_tokens = event.usage.cached_tokens;
  parse(sample, event, part);
  if (part.finish) remember_cut(sample);
  if (!settings_.chat) part.text = event.text;
  if (event.end && !part.finish) end(sample, event, part);
  if (part.finish) {
    sample.ended = true;
    part.last = --open_ == 0;
  }
  part.usage = sample.usage;
  part.total = sample.usage;
  part.total.completion_tokens = part.total.reasoning_tokens = 0;
  for (const auto& each : samples_) {
    part.total.completion_tokens += each->usage.completion_tokens;
    part.total.reasoning_tokens += each->usage.reasoning_tokens;
  }
  const bool news = !part.events.empty() || !part.text.empty() || !part.tokens.empty() || part.finish;
  return news ? std::optional(std::move(part)) : std::nullopt;
}

void Answer::parse(Sample& sample, const Event& event, AnswerPart& part) {
  std::vector<ChatEvent> events;
  for (const GeneratedToken& token : event.tokens) {
    ++sample.usage.completion_tokens;
    const bool closes = sample.reasoning && token.id == think_end_;
    if (sample.reasoning) ++sample.usage.reasoning_tokens;
    if (settings_.logprobs && token.id != eos_ && !closes) {
      part.tokens.push_back({.id = token.id, .reasoning = sample.reasoning, .logprobs = token.logprobs});
    }
    if (closes) sample.reasoning = false;
    if (!settings_.chat) continue;
    sample.parser.push(token.id, events);
    show(sample, std::exchange(events, {}), part);
    if (part.finish) return;
  }
}

// Content passes the stop strings; whatever comes behind content frees what they hold back of it.
void Answer::show(Sample& sample, std::vector<ChatEvent> events, AnswerPart& part) {
  const auto add = [&](ChatEvent event) {
    const bool is_text = event.kind != ChatEvent::Kind::kCallBegin && event.kind != ChatEvent::Kind::kCallEnd;
    if (is_text && event.text.empty()) return;
    if (event.kind == ChatEvent::Kind::kContent && !settings_.stop.empty()) sample.content += event.text;
    if (is_text && !part.events.empty() && part.events.back().kind == event.kind &&
        part.events.back().call == event.call) {
      part.events.back().text += event.text;
    } else {
      part.events.push_back(std::move(event));
    }
  };
  for (ChatEvent& event : events) {
    if (event.kind == ChatEvent::Kind::kContent) {
      event.text = sample.stops.push(event.text);
    } else if (event.kind == ChatEvent::Kind::kCallBegin) {
      add({ChatEvent::Kind::kContent, 0, sample.stops.finish()});
    }
    add(std::move(event));
    if (sample.stops.stopped()) {
      part.finish = Finish::kStopString;
      part.stop = sample.stops.found();
      return;
    }
  }
}

// What comes back ends before the stop string: whole tokens up to there, and the text of the one that was cut.
void Answer::remember_cut(const Sample& sample) {
  if (memory_ == nullptr) return;
  ChatReply reply = sample.parser.reply();
  reply.content = sample.content;
  reply.tool_calls.clear();
  reply.clipped = false;
  const std::string_view content = reply.content;
  const auto in_character = [&](size_t at) {
    return at < content.size() && (static_cast<unsigned char>(content[at]) & 0xC0) == 0x80;
  };
  size_t at = 0, whole = 0, said = 0;
  for (size_t i = 0; i < reply.rest_ids.size(); ++i) {
    const std::string_view bytes = tokenizer_.bytes(reply.rest_ids[i]);
    if (content.substr(at, bytes.size()) != bytes) break;
    at += bytes.size();
    if (in_character(at)) continue;
    whole = i + 1;
    said = at;
  }
  reply.rest_ids.resize(whole);
  reply.tail = content.substr(said);
  memory_->remember(settings_.place, reply);
}

void Answer::end(Sample& sample, const Event& event, AnswerPart& part) {
  const EndReason reason = *event.end;
  if (settings_.chat) {
    std::vector<ChatEvent> events;
    sample.parser.finish(reason == EndReason::kStop ? ReplyEnd::kStop : ReplyEnd::kCut, events);
    show(sample, std::move(events), part);
    if (part.finish) return remember_cut(sample);
    if (sample.parser.reply().tool_calls.empty()) {
      std::string held = sample.stops.finish();
      if (!held.empty()) part.events.push_back({ChatEvent::Kind::kContent, 0, std::move(held)});
    }
  }
  const ChatReply& reply = sample.parser.reply();
  const bool called = !reply.tool_calls.empty() && reply.complete;
  switch (reason) {
    case EndReason::kStop:
      part.finish = called ? Finish::kToolCalls : Finish::kStop;
      break;
    case EndReason::kLength:
      part.finish = called ? Finish::kToolCalls : Finish::kLength;
      break;
    case EndReason::kCancelled:
      part.finish = Finish::kCancelled;
      return;
    case EndReason::kDeadline:
      part.finish = Finish::kDeadline;
      return;
    case EndReason::kStalled:
      part.finish = Finish::kError;
      part.error = "the request made no progress";
      return;
    case EndReason::kError:
    case EndReason::kInvalid:
      part.finish = Finish::kError;
      part.error = event.error;
      part.invalid = reason == EndReason::kInvalid;
      return;
  }
  if (settings_.chat && memory_ != nullptr) memory_->remember(settings_.place, reply);
}

}  // namespace mdi
