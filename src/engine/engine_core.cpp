#include "engine/engine_core.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "engine/slow_masks.h"

namespace mdi {

RunnerSizes runner_sizes(const Model& model, const EngineOptions& o) {
  const int32_t block = o.draft ? model.config().dspark_block_size : 0;
  return {.slots = o.slots,
          .blocks = o.blocks,
          .snapshots = o.snapshots,
          .max_rows = o.max_rows,
          .max_samples = std::min(o.max_rows, o.slots * (1 + block)),
          .max_length = o.max_length,
          .drafts = o.draft && model.draft_stages() > 0,
          .record = o.record_steps,
          .measure = o.measure_every > 0};
}

namespace {

// The cost of draft calls before any was measured: as a step of few layers.
CostModel draft_prior() {
  CostModel model;
  model.prior = {5e-4, 2e-5, 0, 0};
  model.c = model.prior;
  return model;
}

int helper_threads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u)); }

}  // namespace

EngineCore::EngineCore(Context& context, const Model& model, const Tokenizer* tokenizer, const EngineOptions& options)
    : options_(options),
      model_(model),
      tokenizer_(tokenizer),
      runner_(context, model, runner_sizes(model, options)),
      cache_({.blocks = options.blocks, .slots = options.slots, .snapshots = options.snapshots}),
      draft_cost_(draft_prior()),
      helpers_(helper_threads()),
      slow_masks_(std::make_unique<SlowMasks>(model.config().vocab_size)) {
  if (model.config().has_vision) images_ = std::make_unique<ImageEncoder>(context, model);
  metrics_.proposed.resize(static_cast<size_t>(model.config().dspark_block_size));
  metrics_.accepted.resize(metrics_.proposed.size());
  update_gauges();
}

EngineCore::~EngineCore() = default;

void EngineCore::take(std::vector<std::unique_ptr<Sequence>> arrived) {
  queued_ += static_cast<int64_t>(arrived.size());
  metrics_.submitted += static_cast<int64_t>(arrived.size());
  for (auto& s : arrived) {
    newest_ = std::max(newest_, s->owner->id);
    List& list = s->request().pictures.empty() ? waiting_ : encoding_;
    insert_by_age(list, std::move(s));
  }
}

bool EngineCore::idle() const {
  return running_.empty() && encoding_.empty() &&
         std::all_of(waiting_.begin(), waiting_.end(), [](const auto& s) { return s->owner->paused; });
}

bool EngineCore::step(std::vector<std::unique_ptr<Sequence>> arrived, std::span<const EngineOrder> orders) {
  take(std::move(arrived));
  const bool anything = !idle() || !orders.empty();
  metrics_.step_started = part_began_ = now();
  part_ = HostPart::kPlan;
  follow(orders);
  end_due();
  sweep();
  encode_next_image();
  if (options_.preempt_every > 0 && running_.size() > 1 && metrics_.steps % options_.preempt_every == 0) {
    land();
    sweep();
    if (!running_.empty()) preempt(*running_.back());
  }
  if (!running_.empty() || !waiting_.empty()) run_step();
  sweep();
  take_stages();
  update_gauges();
  begin_part(HostPart::kPlan);
  return anything;
}

void EngineCore::follow(std::span<const EngineOrder> orders) {
  for (RequestId id : std::exchange(callback_cancels_, {})) end_request(id, EndReason::kCancelled, "on_event threw");
  for (const EngineOrder& order : orders) {
    switch (order.kind) {
      case EngineOrder::Kind::kCancel:
        end_request(order.request, EndReason::kCancelled, {}, order.sample);
        break;
      case EngineOrder::Kind::kPause:
        pause(order.request);
        break;
      case EngineOrder::Kind::kResume:
        resume(order.request);
        break;
    }
  }
}

void EngineCore::end_due() {
  const double time = now();
  for (List* list : {&running_, &waiting_, &encoding_}) {
    for (size_t i = 0; i < list->size(); ++i) {
      Sequence& s = *(*list)[i];
      if (s.ended) continue;
      const int64_t reached = int64_t{s.committed} + s.generated_count();
      if (s.owner->deadline > 0 && time >= s.owner->deadline) {
        end_request(s.owner->id, EndReason::kDeadline, {});
      } else if (s.running() && stands_still(s.progress, reached, time, options_.stall_limit)) {
        end_request(s.owner->id, EndReason::kStalled, "no progress for " + std::to_string(options_.stall_limit) + " s");
      }
    }
  }
}

SequenceView EngineCore::view_of(const Sequence& s, int32_t committed, int32_t known, bool running) const {
  SequenceView view{.committed = committed, .known = known, .running = running, .left = known - committed};
  if (!running) return view;
  view.blocks = static_cast<int32_t>(s.blocks.size());
  const int64_t tail_block = committed / kCacheBlockTokens;
  view.copies_tail =
      committed % kCacheBlockTokens != 0 && tail_block < s.blocks.size() && s.blocks.block(tail_block).holders() > 1;

  int64_t stop = known;
  for (int64_t at : s.snapshots_at) {
    if (at > committed) {
      stop = std::min(stop, at);
      break;
    }
  }
  // Prompts and what follows them are embedded differently where there are images.
  if (!s.request().images.dead.empty() && committed < s.prompt()) stop = std::min<int64_t>(stop, s.prompt());
  for (const ReplayPiece& piece : s.pieces) {
    if (committed < piece.start || committed >= piece.end) continue;
    stop = std::min<int64_t>(stop, piece.end);
    if (committed < piece.replay_from && piece.replay_from < stop) {
      view.tail = static_cast<int32_t>(stop) - piece.replay_from;
    }
  }
  view.left = static_cast<int32_t>(stop) - committed;
  const int32_t generated = known - s.prompt();
  const bool drafts = s.request().draft && runner_.max_drafting() > 0 && !mask_is_slow(s);
  if (known - committed == 1 && generated > 0 && drafts) {
    view.drafts = std::clamp(s.request().max_tokens - generated - 1, 0, model_.config().dspark_block_size);
  }
  return view;
}

PlanLimits EngineCore::limits() const {
  // What has ended or is about to keeps its slot until its last token has reached the host.
  const auto leaving = std::count_if(running_.begin(), running_.end(), [](const auto& s) { return s->leaves(); });
  return {.slots = options_.slots - static_cast<int32_t>(leaving),
          .max_rows = options_.max_rows,
          .max_samples = runner_.sizes().max_samples,
          .free_blocks = cache_.prefix.available(),
          .tpot_target = options_.tpot_target};
}

void EngineCore::collect(const Flight* after, std::vector<Sequence*>& order, std::vector<SequenceView>& views) const {
  order.clear();
  views.clear();
  const auto add = [&](Sequence& s) {
    if (s.leaves()) return;
    order.push_back(&s);
    int32_t committed = s.committed;
    int32_t known = s.known() + s.awaited;
    if (after != nullptr && s.part >= 0) {
      const Part& part = after->parts[static_cast<size_t>(s.part)];
      committed += part.tokens;
      known += part.sampled() ? 1 : 0;
    }
    views.push_back(view_of(s, committed, known, s.running()));
  };
  size_t next = 0;
  int32_t looked_at = 0;
  // Adds those that wait, and may run, before `s`; null: all.
  const auto add_waiting = [&](const Sequence* s) {
    for (; next < waiting_.size() && looked_at < options_.slots; ++next) {
      Sequence& waits = *waiting_[next];
      if (waits.owner->paused) continue;
      if (s != nullptr && !waits.older_than(*s)) return;
      add(waits);
      ++looked_at;
    }
  };
  for (const auto& s : running_) {
    add_waiting(s.get());
    add(*s);
  }
  add_waiting(nullptr);
}

void EngineCore::plan() {
  const double start = now();
  collect(nullptr, order_, views_);
  decide_drafting(views_);
  limit_drafts(views_);
  if (have_ahead_ && order_ == ahead_order_ && views_ == ahead_views_ && limits() == ahead_limits_) {
    std::swap(plan_, ahead_);
    ++metrics_.plans_ahead_used;
  } else {
    plan_step(views_, limits(), step_cost_, plan_);
  }
  have_ahead_ = false;
  metrics_.plan_seconds.add(now() - start);
}

// Plans the next step as if no sequence ended in this one, no proposal was accepted and nothing arrived. Whether that
// came true is seen by comparing what was planned from with what is there then.
void EngineCore::plan_ahead(Flight& flight) {
  if (!options_.plan_ahead) return;
  for (size_t i = 0; i < flight.parts.size(); ++i) flight.parts[i].sequence->part = static_cast<int32_t>(i);
  collect(&flight, ahead_order_, ahead_views_);
  for (const Part& part : flight.parts) part.sequence->part = -1;
  limit_drafts(ahead_views_);
  ahead_limits_ = limits();
  plan_step(ahead_views_, ahead_limits_, step_cost_, ahead_);
  have_ahead_ = true;
  ++metrics_.plans_ahead;
}

bool EngineCore::reserve(Sequence& s, int32_t tokens) {
  const int64_t needed = s.blocks.needed(s.committed, tokens);
  if (needed > cache_.blocks.free() && !cache_.prefix.make_room(needed)) return false;
  return s.blocks.reserve(cache_.blocks, s.committed, tokens, copies_);
}

void EngineCore::apply_plan() {
  parts_.clear();
  copies_.clear();
  for (int32_t i : plan_.preempted) preempt(*order_[static_cast<size_t>(i)]);
  for (const PlannedPart& planned : plan_.parts) {
    Sequence& s = *order_[static_cast<size_t>(planned.sequence)];
    int32_t tokens = planned.tokens;
    if (!s.running()) {
      if (!admit(s)) continue;
      // What was planned was a cold start; a prefix that was found leaves less to run.
      const SequenceView view = view_of(s, s.committed, s.known(), true);
      tokens = chunk_of(view.left, view.tail, planned.tokens);
      if (tokens == 0) continue;
    }
    // Blocks that others hold too were counted as if they came free; what does not fit now is planned again.
    if (!reserve(s, tokens + planned.drafts)) continue;
    Part part;
    part.sequence = &s;
    part.tokens = tokens;
    part.drafts = planned.drafts;
    parts_.push_back(std::move(part));
  }
  runner_.copy_blocks(copies_);
}

void EngineCore::begin_part(HostPart part) {
  const double time = now();
  metrics_.host_seconds[static_cast<size_t>(part_)] += time - part_began_;
  part_ = part;
  part_began_ = time;
}

void EngineCore::take_stages() {
  if (measured_ == nullptr) return;
  const std::optional<PerStage<double>> seconds = runner_.take_stages();
  if (!seconds) return;
  ++measured_->steps;
  for (size_t i = 0; i < kStages; ++i) measured_->seconds[static_cast<Stage>(i)] += (*seconds)[static_cast<Stage>(i)];
  measured_ = nullptr;
}

void EngineCore::update_gauges() {
  metrics_.steps_recorded = runner_.recorded_steps();
  metrics_.waiting = static_cast<int64_t>(waiting_.size() + encoding_.size());
  metrics_.running = static_cast<int64_t>(running_.size());
  metrics_.blocks_total = cache_.blocks.size();
  metrics_.blocks_free = cache_.blocks.free();
  metrics_.blocks_idle = cache_.blocks.idle();
  metrics_.slots_total = cache_.slots.size();
  metrics_.slots_free = cache_.slots.free();
  const PrefixStats& prefix = cache_.prefix.stats();
  metrics_.snapshots = cache_.prefix.snapshots();
  metrics_.snapshots_evicted = prefix.evicted;
}

}  // namespace mdi
