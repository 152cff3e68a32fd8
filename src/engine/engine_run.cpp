// One step of the model: from its parts to tokens and a commit.
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "engine/engine_core.h"

namespace mdi {

void EngineCore::run_step() {
  if (!flight_) {
    plan();
    apply_plan();
    if (parts_.empty()) return;
    begin_part(HostPart::kDrafts);
    propose();
    Flight flight = start_parts();
    if (!flight.on_device) return finish_on_host(std::move(flight));
    take_off(std::move(flight));
  }
  std::optional<Flight> next = start_next();
  land();
  if (!next) return;
  if (next->on_device) {
    take_off(std::move(*next));
  } else {
    finish_on_host(std::move(*next));
  }
}

// Penalties, biases and grammars change the row first, log-probabilities are read off it, and the samples of a request
// that have not been forked yet all draw from it.
bool EngineCore::host_chooses(const Sequence& s) const {
  const Request& r = s.request();
  return !options_.device_sampling || has_penalties(r.sampling) || r.allowed || r.logprobs || !s.owner->forked;
}

EngineCore::Flight EngineCore::start_parts() {
  begin_part(HostPart::kLaunch);
  if (drafts_off_) {
    note_step(drafts_, false);
    ++metrics_.steps_drafts_off;
  }
  Flight flight;
  flight.on_device = options_.device_sampling;
  step_sequences_.clear();
  choice_.clear();
  int32_t rows = 0;
  bool any = false;  // tokens to choose on the device
  bool prefill = false;
  for (Part& part : parts_) {
    Sequence& s = *part.sequence;
    const int32_t seen = std::min(part.tokens, s.known() - s.committed);
    const auto begin = s.tokens.begin() + s.committed;
    part.new_tokens.assign(begin, begin + seen);
    if (seen < part.tokens) {  // the last one is on the device alone
      choice_.place.push_back(rows + seen);
      choice_.source.push_back(s.awaited_sample);
      part.new_tokens.push_back(0);
    }
    for (const Proposal& p : part.proposals) part.new_tokens.push_back(p.token);
    part.first_sample = static_cast<int32_t>(choice_.rows.size());
    const int32_t known = s.known() + s.awaited;
    if (s.committed + part.tokens == known) {
      part.sample_rows.resize(1 + part.proposals.size());
      std::iota(part.sample_rows.begin(), part.sample_rows.end(), part.tokens - 1);
      part.on_device = part.proposals.empty() && !host_chooses(s);
      flight.on_device = flight.on_device && part.on_device;
      any = any || part.on_device;
      SampleRow row{.wanted = 0};
      if (part.on_device) {
        row = sample_row(s.request().sampling, static_cast<uint64_t>(s.sample), static_cast<uint64_t>(known));
      }
      choice_.rows.resize(choice_.rows.size() + part.sample_rows.size(), row);
    }
    StepSequence sequence;
    sequence.slot = s.slot.id();
    sequence.start = s.committed;
    sequence.tokens = part.new_tokens;
    if (!s.request().images.dead.empty() && s.committed < s.prompt()) {
      const PromptPart images = part_of(s.request().prompt, s.request().images, s.committed, part.tokens);
      sequence.dead = images.dead;
      sequence.image_rows = images.image_rows;
    }
    sequence.blocks = s.blocks.ids();
    sequence.sample_tokens = part.sample_rows;
    sequence.replay_from = replay_from_at(s, s.committed);
    step_sequences_.push_back(sequence);

    const auto count = static_cast<int32_t>(part.new_tokens.size());
    rows += count;
    flight.load += load_of(s.committed, count, static_cast<int64_t>(part.sample_rows.size()));
    if (s.generated_count() + s.awaited == 0) {
      metrics_.prefill_tokens += part.tokens;
      prefill = true;
    }
    ++s.in_flight;
  }
  metrics_.rows += rows;
  if (!any) choice_.rows.clear();
  const bool measured = measure_next(prefill);
  flight.started = now();
  flight.ticket = runner_.start(step_sequences_, options_.replay.form, choice_, measured);
  if (!runner_.runs_ahead()) flight.ran = now() - flight.started;
  flight.parts = std::move(parts_);
  parts_.clear();
  return flight;
}

// The second of each kind is the first: one-time costs of a backend are behind it.
bool EngineCore::measure_next(bool prefill) {
  const int64_t every = options_.measure_every;
  if (every == 0) return false;
  StageTimes& kind = prefill ? metrics_.prefill_stages : metrics_.decode_stages;
  if (kind.started++ % every != std::min<int64_t>(1, every - 1)) return false;
  take_stages();
  if (!runner_.can_measure()) return false;
  measured_ = &kind;
  return true;
}

// A step's own time: from its start, or from the end of the step before where that was later.
void EngineCore::note_done(const Flight& flight) {
  const double time = now();
  const double seconds = flight.ran >= 0 ? flight.ran : time - std::max(flight.started, last_done_);
  last_done_ = time;
  observe(step_cost_, flight.load, seconds);
  metrics_.step_seconds.add(seconds);
  ++metrics_.steps;
}

void EngineCore::side_by_side(size_t count, const std::function<void(int64_t)>& body) {
  helpers_.for_each(static_cast<int64_t>(count), body);
}

// The parts whose tokens the host chooses, each by itself: what one gets depends on its own rows and tokens.
std::vector<Chosen> EngineCore::choose_on_host(const Flight& flight, std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  std::vector<Chosen> chosen(flight.parts.size());
  std::vector<size_t> asked;
  for (size_t i = 0; i < flight.parts.size(); ++i) {
    const Part& part = flight.parts[i];
    if (part.sampled() && !part.on_device && !part.sequence->ended && !part.waits) asked.push_back(i);
  }
  side_by_side(asked.size(), [&](int64_t n) {
    static thread_local SamplingScratch scratch;
    const size_t i = asked[static_cast<size_t>(n)];
    const Part& part = flight.parts[i];
    SamplingSequence sequence = sampling_of(*part.sequence);
    sequence.masks = part.masks;
    const auto own = logits.subspan(static_cast<size_t>(part.first_sample) * vocab, part.sample_rows.size() * vocab);
    chosen[i] = choose_tokens(own, static_cast<int64_t>(vocab), part.proposals, sequence, scratch);
  });
  return chosen;
}

void EngineCore::finish_on_host(Flight flight) {
  begin_part(HostPart::kPlan);
  plan_ahead(flight);
  begin_part(HostPart::kMasks);
  ask_grammars(flight);
  begin_part(HostPart::kWait);
  std::vector<uint8_t> rows;  // that the host looks at
  for (const Part& part : flight.parts) {
    const bool wanted = !part.on_device && !part.sequence->ended;
    rows.resize(rows.size() + part.sample_rows.size(), wanted ? 1 : 0);
  }
  const std::span<const float> logits = runner_.fetch(rows);
  const std::span<const int32_t> chosen_there = runner_.chosen(flight.ticket);
  note_done(flight);
  begin_part(HostPart::kMasks);
  take_slow_masks(flight);

  begin_part(HostPart::kChoice);
  const double start = part_began_;
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  std::vector<Chosen> chosen_here = choose_on_host(flight, logits);
  std::vector<int32_t> accepted;
  std::vector<std::pair<const Part*, std::span<const float>>> leaders;  // of requests with more than one sample
  for (size_t at = 0; at < flight.parts.size(); ++at) {
    const Part& part = flight.parts[at];
    Sequence& s = *part.sequence;
    --s.in_flight;
    int32_t kept = s.ended || part.waits ? 0 : part.tokens;
    if (part.sampled() && !s.ended && !part.waits) {
      const auto first = static_cast<size_t>(part.first_sample);
      const Chosen chosen = part.on_device ? chosen_on_device(chosen_there[first]) : std::move(chosen_here[at]);
      if (!s.owner->forked) leaders.emplace_back(&part, logits.subspan(first * vocab, vocab));
      for (size_t i = 0; i < part.proposals.size(); ++i) {
        ++metrics_.proposed[i];
        if (static_cast<int32_t>(i) < chosen.accepted) ++metrics_.accepted[i];
      }
      if (part.drafts > 0) note_block(drafts_, static_cast<int32_t>(part.proposals.size()), chosen.accepted);
      kept += std::min(emit(s, chosen), chosen.accepted);
      // What ends it is no part of what comes back, so its state is of no use to anybody.
      if (s.stops.stopped()) kept = std::min(kept, s.known() - 1 - s.committed);
    }
    accepted.push_back(kept);
  }
  commit_parts(flight, accepted);
  for (const Part& part : flight.parts) {
    if (part.sampled() && part.sequence->answered()) publish(*part.sequence);
  }
  for (const auto& [leader, row] : leaders) fork(*leader->sequence, row, leader->masks);
  for (const Part& part : flight.parts) {
    if (part.sampled() && !part.sequence->ended && mask_is_slow(*part.sequence)) ask_slow_mask(*part.sequence);
  }
  metrics_.sample_seconds.add(now() - start);
}

void EngineCore::commit_parts(const Flight& flight, std::span<const int32_t> accepted) {
  begin_part(HostPart::kPublish);
  runner_.commit(accepted);
  for (size_t i = 0; i < flight.parts.size(); ++i) {
    Sequence& s = *flight.parts[i].sequence;
    s.committed += accepted[i];
    const bool wanted = std::find(s.snapshots_at.begin(), s.snapshots_at.end(), s.committed) != s.snapshots_at.end();
    if (wanted && accepted[i] > 0) publish(s);
  }
}

}  // namespace mdi
