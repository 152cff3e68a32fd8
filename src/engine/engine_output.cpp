// From chosen tokens to events, and the ends of sequences.
#include <algorithm>

#include "engine/engine_core.h"

namespace mdi {

SamplingSequence EngineCore::sampling_of(Sequence& s) const {
  const Request& r = s.request();
  return {.params = &r.sampling,
          .allowed = &r.allowed,
          .logprobs = r.logprobs,
          .sequence = static_cast<uint64_t>(s.sample),
          .position = static_cast<uint64_t>(s.known()),
          .history = has_penalties(r.sampling) ? &s.history : nullptr,
          .generated = s.generated()};
}

namespace {

std::string fault_text(const Chosen& chosen) {
  switch (chosen.fault) {
    case SamplingFault::kGrammar:
      return chosen.error;
    case SamplingFault::kNothingAllowed:
      return "request: of the tokens that are allowed here none can be chosen";
    default:
      return "the model's output is not a finite number";
  }
}

}  // namespace

Chosen EngineCore::chosen_on_device(int32_t token) {
  Chosen chosen;
  if (token == kNotFinite) {
    chosen.fault = SamplingFault::kNotANumber;
  } else {
    chosen.tokens.push_back(token);
    ++metrics_.tokens_on_device;
  }
  return chosen;
}

int32_t EngineCore::emit(Sequence& s, const Chosen& chosen) {
  Event event;
  event.sample = s.sample;
  if (chosen.fault != SamplingFault::kNone) {
    const bool models = chosen.fault == SamplingFault::kNotANumber;
    end(s, models ? EndReason::kError : EndReason::kInvalid, fault_text(chosen), std::move(event));
    return 0;
  }
  const Request& r = s.request();
  std::optional<EndReason> reason;
  for (size_t i = 0; i < chosen.tokens.size() && !reason; ++i) {
    const int32_t token = chosen.tokens[i];
    s.tokens.push_back(token);
    if (has_penalties(r.sampling)) s.history.push(token);
    event.tokens.push_back({.id = token, .logprobs = r.logprobs ? chosen.logprobs[i] : Logprobs{}});
    if (s.detokenizer) event.text += s.stops.push(s.detokenizer->push(token));
    if (std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end() || s.stops.stopped()) {
      reason = EndReason::kStop;
    } else if (s.generated_count() == r.max_tokens) {
      reason = EndReason::kLength;
    }
  }
  const auto taken = static_cast<int32_t>(event.tokens.size());
  metrics_.generated_tokens += taken;
  s.admissions = 0;
  const double time = now();
  if (s.first_token_at == 0) {
    s.first_token_at = time;
    metrics_.first_token_seconds.add(time - s.owner->submitted);
  } else {
    for (int32_t i = 0; i < taken; ++i) metrics_.token_seconds.add((time - s.last_token_at) / taken);
  }
  s.last_token_at = time;
  if (reason) {
    end(s, *reason, {}, std::move(event));
  } else {
    event.usage.completion_tokens = s.generated_count();
    send(*s.owner, std::move(event));
  }
  return taken;
}

void EngineCore::end(Sequence& s, EndReason reason, const std::string& error, Event event) {
  s.ended = reason;
  if (!s.counted) --queued_;
  s.counted = true;
  if (s.detokenizer && !s.stops.stopped()) {
    // A character that is cut off is left out, as in a conversation; one that the model itself leaves open is shown.
    if (reason == EndReason::kStop) event.text += s.stops.push(s.detokenizer->finish());
    if (!s.stops.stopped()) event.text += s.stops.finish();
  }
  if (!s.request().text) event.text.clear();
  event.sample = s.sample;
  event.end = reason;
  event.error = error;
  event.usage.completion_tokens = s.generated_count();
  event.last = --s.owner->open == 0;
  switch (reason) {
    case EndReason::kStop:
      ++metrics_.ended_stop;
      break;
    case EndReason::kLength:
      ++metrics_.ended_length;
      break;
    case EndReason::kCancelled:
      ++metrics_.ended_cancelled;
      break;
    case EndReason::kDeadline:
      ++metrics_.ended_deadline;
      break;
    case EndReason::kStalled:
      ++metrics_.ended_stalled;
      break;
    case EndReason::kError:
      ++metrics_.ended_error;
      break;
    case EndReason::kInvalid:
      ++metrics_.ended_invalid;
      break;
  }
  send(*s.owner, std::move(event));
}

void EngineCore::end_request(RequestId id, EndReason reason, const std::string& error, int32_t sample) {
  std::shared_ptr<RequestState> owner;
  for (List* list : {&running_, &waiting_, &encoding_}) {
    for (const auto& s : *list) {
      if (s->owner->id != id || s->ended || (sample >= 0 && s->sample != sample)) continue;
      owner = s->owner;
      end(*s, reason, error, {});
    }
  }
  if (owner == nullptr) {
    ++metrics_.late_cancels;
    return;
  }
  if (sample >= 0) return;
  // Samples that never came to be.
  for (int32_t i = 1; !owner->forked && i < owner->request.n; ++i) {
    Event event;
    event.sample = i;
    event.end = reason;
    event.error = error;
    event.last = --owner->open == 0;
    send(*owner, std::move(event));
  }
  owner->forked = true;
}

void EngineCore::send(RequestState& owner, Event event) {
  event.request = owner.id;
  event.usage.prompt_tokens = static_cast<int32_t>(owner.request.prompt.size());
  event.usage.cached_tokens = owner.cached_tokens;
  if (!owner.request.text) event.text.clear();
  if (!owner.request.on_event) return;
  try {
    owner.request.on_event(event);
  } catch (...) {
    ++metrics_.callback_errors;
    owner.request.on_event = {};  // it gets nothing more
    callback_cancels_.push_back(owner.id);
  }
}

void EngineCore::end_all(EndReason reason, const std::string& error) {
  flight_.reset();
  parts_.clear();
  for (const auto& s : running_) s->in_flight = s->awaited = 0;
  std::vector<RequestId> ids;
  for (List* list : {&running_, &waiting_, &encoding_}) {
    for (const auto& s : *list) ids.push_back(s->owner->id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (RequestId id : ids) end_request(id, reason, error);
  sweep();
  update_gauges();
}

void EngineCore::sweep() {
  // What a step in flight belongs to stays until it has landed.
  const auto ended = [](const std::unique_ptr<Sequence>& s) { return s->ended.has_value() && s->in_flight == 0; };
  std::erase_if(running_, ended);
  std::erase_if(waiting_, ended);
  std::erase_if(encoding_, ended);
}

}  // namespace mdi
