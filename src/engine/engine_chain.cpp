// Steps whose tokens the host sees while the next step runs.
#include "engine/engine_core.h"

namespace mdi {

// As if no sequence ended by what the step in flight has chosen; take_off() and finish_on_host() see to those that did.
// None where somebody would have to give up blocks or where drafting pays: proposals follow a token that is known.
std::optional<EngineCore::Flight> EngineCore::start_next() {
  begin_part(HostPart::kPlan);
  const double start = part_began_;
  collect(nullptr, order_, views_);
  if (views_.empty()) return std::nullopt;
  decide_drafting(views_);
  if (drafting_) return std::nullopt;
  limit_drafts(views_);
  plan_step(views_, limits(), step_cost_, plan_);
  have_ahead_ = false;
  metrics_.plan_seconds.add(now() - start);
  if (!plan_.preempted.empty() || plan_.parts.empty()) return std::nullopt;
  apply_plan();
  if (parts_.empty()) return std::nullopt;
  ++metrics_.steps_chained;
  return start_parts();
}

// What a part keeps does not depend on what is chosen behind it, so the commit is asked for at once.
void EngineCore::take_off(Flight flight) {
  std::vector<int32_t> accepted;
  for (const Part& part : flight.parts) accepted.push_back(part.sequence->ended ? 0 : part.tokens);
  commit_parts(flight, accepted);
  for (const Part& part : flight.parts) {
    if (!part.sampled()) continue;
    part.sequence->awaited = 1;
    part.sequence->awaited_sample = part.first_sample;
  }
  flight_ = std::move(flight);
}

// Between the start of the next step and its commit: what is published here is the state before it.
void EngineCore::land() {
  if (!flight_) return;
  begin_part(HostPart::kWait);
  const Flight flight = std::move(*flight_);
  flight_.reset();
  const std::span<const int32_t> chosen = runner_.chosen(flight.ticket);
  note_done(flight);
  begin_part(HostPart::kChoice);
  const double start = part_began_;
  for (const Part& part : flight.parts) {
    Sequence& s = *part.sequence;
    --s.in_flight;
    if (!part.sampled()) continue;
    s.awaited = 0;
    if (s.ended) continue;
    emit(s, chosen_on_device(chosen[static_cast<size_t>(part.first_sample)]));
    if (!s.answered()) continue;
    begin_part(HostPart::kPublish);
    publish(s);
    begin_part(HostPart::kChoice);
  }
  metrics_.sample_seconds.add(now() - start);
}

}  // namespace mdi
