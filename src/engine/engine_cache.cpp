// Where a sequence's state comes from and where it goes: admission with a prefix hit, preemption, snapshots, forks.
#include <algorithm>

#include "engine/engine_core.h"

namespace mdi {

namespace {

// Keeps the key at all known tokens.
void extend_key(Sequence& s) {
  const auto length = static_cast<size_t>(s.key.length());
  if (length < s.tokens.size()) s.key.append(std::span(s.tokens).subspan(length));
}

void move_to(std::vector<std::unique_ptr<Sequence>>& from, std::vector<std::unique_ptr<Sequence>>& to, Sequence& s) {
  const auto at = std::find_if(from.begin(), from.end(), [&s](const auto& entry) { return entry.get() == &s; });
  std::unique_ptr<Sequence> moved = std::move(*at);
  from.erase(at);
  const auto behind = std::find_if(to.begin(), to.end(), [&s](const auto& entry) { return s.older_than(*entry); });
  to.insert(behind, std::move(moved));
}

}  // namespace

bool EngineCore::admit(Sequence& s) {
  SlotRef slot = cache_.slots.take();
  if (!slot) return false;
  s.slot = std::move(slot);
  extend_key(s);
  const int32_t rows = options_.replay.rows;
  // One token at least has to run, for its logits.
  PrefixHit hit = cache_.prefix.find(s.key, s.known() - 1, [&](int64_t position, std::string_view history) {
    return accepts_snapshot(s, rows, position, decode_history(history));
  });
  if (hit.position > 0) {
    runner_.restore(s.slot.id(), hit.snapshot.id());
  } else {
    runner_.clear(s.slot.id());
  }
  s.blocks = std::move(hit.blocks);
  s.committed = static_cast<int32_t>(hit.position);
  plan_segments(s, rows, s.committed, decode_history(hit.history));

  s.snapshots_at.clear();
  if (s.generated_count() == 0 && options_.snapshots > 0) {
    // Where rows are dropped, the state between the first kept row and the prompt's end is of no use to anybody.
    const bool drops = !s.segments.empty() && s.segments.back().end == s.prompt();
    const int64_t last = drops ? s.segments.back().kept_from : s.prompt() - 1;
    s.snapshots_at = snapshot_positions(s.committed, last, hit.branch, options_.snapshot_every_blocks);
    if (drops) s.snapshots_at.push_back(s.prompt());
    const bool small = s.prompt() - s.committed < options_.snapshot_min_tokens;
    if (small) std::erase_if(s.snapshots_at, [&](int64_t at) { return at != hit.branch; });
  }
  if (!s.counted) {
    s.counted = true;
    --queued_;
    s.owner->cached_tokens = s.committed;
    ++metrics_.lookups;
    metrics_.hits += s.committed > 0 ? 1 : 0;
    metrics_.hit_tokens += s.committed;
    metrics_.prompt_tokens += s.prompt();
  }
  // A long recomputation is given its time; one that is interrupted again and again is not. Waiting is no stall.
  s.progress.since += now() - s.stopped_at;
  if (s.admissions++ < 3) s.progress = {.furthest = s.committed + s.generated_count(), .since = now()};
  move_to(waiting_, running_, s);
  return true;
}

void EngineCore::preempt(Sequence& s) {
  s.slot.reset();
  s.blocks.clear();
  s.committed = 0;
  s.snapshots_at.clear();
  s.pieces.clear();
  s.stopped_at = now();
  ++metrics_.preemptions;
  move_to(running_, waiting_, s);
}

// Its state goes to a snapshot where it has generated something, so that going on costs little; a prompt's own
// snapshots have to do for a prefill.
void EngineCore::pause(RequestId id) {
  land();
  sweep();
  std::vector<Sequence*> own;
  for (const auto& s : running_) {
    if (s->owner->id == id) own.push_back(s.get());
  }
  for (Sequence* s : own) {
    if (s->generated_count() > 0) publish(*s);
    preempt(*s);
  }
  for (List* list : {&waiting_, &encoding_}) {
    for (const auto& s : *list) {
      if (s->owner->id == id) s->owner->paused = true;
    }
  }
}

void EngineCore::resume(RequestId id) {
  List own;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if ((*at)->owner->id != id) {
      ++at;
      continue;
    }
    own.push_back(std::move(*at));
    at = waiting_.erase(at);
  }
  for (auto& s : own) {
    s->owner->paused = false;
    s->owner->turn = 2 * newest_ + 1;
    insert_by_age(waiting_, std::move(s));
  }
  for (const auto& s : encoding_) {
    if (s->owner->id == id) s->owner->paused = false;
  }
}

void EngineCore::publish(Sequence& s) {
  if (options_.snapshots == 0 || s.committed < 1) return;
  const bool answered = s.ended.has_value();
  if (answered && s.committed - s.owner->cached_tokens < options_.snapshot_min_tokens) return;
  extend_key(s);
  std::string history = encode_history(history_at(s, s.committed));
  if (cache_.prefix.contains(s.key, s.committed, history)) return;
  SnapshotRef buffer = cache_.prefix.take_snapshot();
  if (!buffer) return;
  runner_.save(s.slot.id(), buffer.id());
  cache_.prefix.publish(s.key, s.blocks, s.committed, std::move(history), std::move(buffer));
}

void EngineCore::fork(Sequence& leader, std::span<const float> row, std::span<const TokenMask> masks) {
  const std::shared_ptr<RequestState> owner = leader.owner;
  owner->forked = true;
  List samples;
  for (int32_t sample = 1; sample < owner->request.n; ++sample) {
    auto s = std::make_unique<Sequence>(owner, sample, leader.key);
    s->tokens = owner->request.prompt;
    s->counted = true;
    s->segments = leader.segments;
    s->pieces = leader.pieces;
    if (has_penalties(owner->request.sampling)) s->history.add_prompt(owner->request.prompt);
    if (leader.detokenizer) s->detokenizer.emplace(*tokenizer_, true);
    samples.push_back(std::move(s));
  }
  std::vector<Chosen> chosen(samples.size());
  side_by_side(samples.size(), [&](int64_t n) {
    static thread_local SamplingScratch scratch;
    const auto i = static_cast<size_t>(n);
    SamplingSequence sequence = sampling_of(*samples[i]);
    sequence.masks = masks;
    chosen[i] = choose_tokens(row, static_cast<int64_t>(row.size()), {}, sequence, scratch);
  });
  for (size_t i = 0; i < samples.size(); ++i) {
    std::unique_ptr<Sequence> s = std::move(samples[i]);
    emit(*s, chosen[i]);
    if (s->ended) continue;
    s->slot = cache_.slots.take();
    List* list = &waiting_;
    if (s->slot) {
      list = &running_;
      s->blocks = leader.blocks.fork();
      s->committed = leader.committed;
      runner_.copy(leader.slot.id(), s->slot.id());
    }
    const auto behind = std::find_if(list->begin(), list->end(), [&s](const auto& e) { return s->older_than(*e); });
    list->insert(behind, std::move(s));
  }
}

}  // namespace mdi
