#include "engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "model/state.h"

namespace mdi {

namespace {

bool decodes(const SequenceView& s) { return s.running && s.known - s.committed == 1; }

// Blocks that a sequence must be given before it runs `tokens` more.
int64_t need(const SequenceView& s, int64_t tokens) {
  const int64_t more = std::max<int64_t>(0, blocks_for(s.committed + tokens) - s.blocks);
  return more + (s.copies_tail ? 1 : 0);
}

// The state of one planning run.
struct Planner {
  std::span<const SequenceView> sequences;
  const PlanLimits& limits;
  const CostModel& cost;
  StepPlan& plan;
  int64_t free = 0;
  int32_t rows = 0, samples = 0, running = 0;

  int32_t behind_youngest = 0;  // no sequence from here on is running

  bool preempted(int32_t index) const { return plan.is_preempted[static_cast<size_t>(index)] != 0; }

  // The youngest running sequence behind `keep`, or -1.
  int32_t youngest(int32_t keep) {
    for (; behind_youngest - 1 > keep; --behind_youngest) {
      const int32_t i = behind_youngest - 1;
      if (sequences[static_cast<size_t>(i)].running && !preempted(i)) return i;
    }
    return -1;
  }

  void preempt(int32_t index) {
    plan.preempted.push_back(index);
    plan.is_preempted[static_cast<size_t>(index)] = 1;
    free += sequences[static_cast<size_t>(index)].blocks;
    --running;
  }

  void add(int32_t index, int32_t tokens, int32_t drafts) {
    const SequenceView& s = sequences[static_cast<size_t>(index)];
    const bool sampled = s.committed + tokens == s.known;
    plan.parts.push_back({.sequence = index, .tokens = tokens, .drafts = drafts});
    plan.load += load_of(s.committed, tokens + drafts, sampled ? 1 + drafts : 0);
    rows += tokens + drafts;
    samples += sampled ? 1 + drafts : 0;
    free -= need(s, tokens + drafts);
  }

  // Preempts until the next token of every decoding sequence has its block.
  void make_room() {
    int64_t needed = 0;
    int32_t oldest = -1;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].running && oldest < 0) oldest = static_cast<int32_t>(i);
      if (decodes(sequences[i])) needed += need(sequences[i], 1);
    }
    while (needed > free) {
      const int32_t victim = youngest(oldest);
      if (victim < 0) return;
      const SequenceView& s = sequences[static_cast<size_t>(victim)];
      if (decodes(s)) needed -= need(s, 1);
      preempt(victim);
    }
  }

  void decode() {
    int32_t decoding = 0;
    int64_t needed = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (!decodes(sequences[i]) || preempted(static_cast<int32_t>(i))) continue;
      ++decoding;
      needed += need(sequences[i], 1);
    }
    int32_t spare_rows = std::min(limits.max_rows, limits.max_samples) - decoding;
    int64_t spare_blocks = free - needed;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const SequenceView& s = sequences[i];
      if (!decodes(s) || preempted(static_cast<int32_t>(i))) continue;
      if (need(s, 1) > free || rows >= limits.max_rows || samples >= limits.max_samples) continue;
      int32_t drafts = std::clamp(spare_rows, 0, s.drafts);
      if (need(s, 1 + drafts) - need(s, 1) > spare_blocks) {
        // What still fits into the block of its next token.
        drafts = std::min(drafts, static_cast<int32_t>(blocks_for(s.committed + 1) * kBlockTokens - s.committed - 1));
      }
      spare_rows -= drafts;
      spare_blocks -= need(s, 1 + drafts) - need(s, 1);
      add(static_cast<int32_t>(i), 1, drafts);
    }
  }

  // Tokens that prefills behind this one could run in this step.
  int64_t wanted_behind(size_t index, int64_t promised) const {
    int64_t wanted = 0;
    int32_t taken = running + (sequences[index].running ? 0 : 1);
    for (size_t i = index + 1; i < sequences.size(); ++i) {
      const SequenceView& s = sequences[i];
      if (decodes(s) || preempted(static_cast<int32_t>(i))) continue;
      if (!s.running) {
        promised += need(s, s.known - s.committed);
        if (!plan.preempted.empty() || ++taken > limits.slots || promised + 1 > free) break;
      }
      wanted += s.left;
    }
    return wanted;
  }

  // Tokens of a prefill that join the step; 0: none. `behind`: those that others could run.
  int32_t chunk(const SequenceView& s, bool first, int64_t behind) const {
    const int32_t room = std::min(limits.max_rows - rows, s.left);
    if (room <= 0 || samples >= limits.max_samples) return 0;
    int32_t budget = room;
    if (limits.tpot_target > 0 && plan.load.samples > 0) {
      budget = rows_within(cost, plan.load, s.committed, room, limits.tpot_target);
      if (first) budget = std::max(budget, std::min({limits.min_prefill, room}));
    }
    if (first && behind > 0) {
      // A short prompt does not wait for all of a long one before it.
      const int32_t all = budget < room ? budget : limits.max_rows - rows;
      const int32_t most = std::max(limits.min_prefill, all - static_cast<int32_t>(std::min<int64_t>(all / 2, behind)));
      budget = std::min(budget, most);
    }
    const int64_t held = (s.blocks + free - (s.copies_tail ? 1 : 0)) * int64_t{kBlockTokens} - s.committed;
    const auto fits = static_cast<int32_t>(std::clamp<int64_t>(held, 0, room));
    int32_t tokens = chunk_of(s.left, s.tail, std::min(budget, fits));
    // A tail that is longer than the budget has to run some time.
    if (tokens == 0 && first) tokens = chunk_of(s.left, s.tail, std::min(std::max(budget, s.tail), fits));
    return tokens;
  }

  void prefill() {
    // Blocks that the running prefills will need to reach their last known token.
    int64_t promised = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const SequenceView& s = sequences[i];
      if (s.running && !decodes(s) && !preempted(static_cast<int32_t>(i))) promised += need(s, s.known - s.committed);
    }
    bool first = true;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const SequenceView& s = sequences[i];
      if (decodes(s) || preempted(static_cast<int32_t>(i))) continue;
      const int64_t whole = need(s, s.known - s.committed);
      if (!s.running) {
        // Nobody is admitted past the one that waits longest, nor beside a preemption.
        if (!plan.preempted.empty() || running >= limits.slots) return;
        if (running > 0 && whole + 1 > free - promised) return;
      }
      const int64_t own = s.running ? 0 : whole;
      const int32_t tokens = chunk(s, first, first ? wanted_behind(i, promised + own) : 0);
      if (tokens == 0) {
        if (s.running) continue;
        return;
      }
      if (s.running) promised -= need(s, tokens);
      if (!s.running) {
        plan.admitted.push_back(static_cast<int32_t>(i));
        ++running;
        promised += whole - need(s, tokens);
      }
      add(static_cast<int32_t>(i), tokens, 0);
      first = false;
    }
  }
};

}  // namespace

int32_t chunk_of(int32_t left, int32_t tail, int32_t budget) {
  if (left <= budget) return left;
  return std::max(0, std::min(budget, left - tail));
}

void plan_step(std::span<const SequenceView> sequences, const PlanLimits& limits, const CostModel& cost,
               StepPlan& plan) {
  plan.preempted.clear();
  plan.admitted.clear();
  plan.parts.clear();
  plan.load = {};
  plan.is_preempted.assign(sequences.size(), 0);
  Planner planner{.sequences = sequences, .limits = limits, .cost = cost, .plan = plan, .free = limits.free_blocks};
  planner.behind_youngest = static_cast<int32_t>(sequences.size());
  int32_t oldest = -1;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].running) continue;
    ++planner.running;
    if (oldest < 0) oldest = static_cast<int32_t>(i);
  }
  planner.make_room();
  planner.decode();
  planner.prefill();
  // Prefills that all wait for blocks: the youngest one gives up its own, so that the oldest gets on.
  if (plan.parts.empty() && plan.preempted.empty()) {
    const int32_t victim = planner.youngest(oldest);
    if (victim >= 0) planner.preempt(victim);
  }
  plan.seconds = predict(cost, plan.load);
}

}  // namespace mdi
