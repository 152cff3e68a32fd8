// What the next step does: a pure function from the sequences' lengths, the room that is left and the cost model to a
// plan. It knows nothing of models, blocks' ids or requests, so it can be tested and timed alone.
//
// Order of service: decoding sequences first, all of them; then prefill, oldest first, as much as the decode latency
// target leaves (a little always, so that nobody starves); then waiting sequences while there are slots and blocks. The
// oldest prefill leaves up to half of that to those behind it.
// When decoding sequences need more blocks than there are, the youngest running sequences are preempted: they give up
// slot and blocks and wait, to be recomputed from their tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cost_model.h"

namespace mdi {

// What planning sees of a sequence.
struct SequenceView {
  int32_t committed = 0;     // tokens in the state; of a waiting sequence 0
  int32_t known = 0;         // tokens whose ids are known, more than committed
  int32_t blocks = 0;        // cache blocks that it holds
  bool running = false;      // has a slot
  bool copies_tail = false;  // its next token goes into a block that others hold too, which takes a block more
  // Tokens up to the next place where a step has to end, 1..known - committed, and how many of them the last step up to
  // there has at least where a step's room allows it (bounded replay, whose last rows run together; else 1).
  int32_t left = 0;
  int32_t tail = 1;
  int32_t drafts = 0;  // proposals that may be verified behind the one known token; 0 unless known - committed is 1

  friend bool operator==(const SequenceView&, const SequenceView&) = default;
};

struct PlanLimits {
  int32_t slots = 0;         // in all, held ones included
  int32_t max_rows = 0;      // new tokens of a step; at least slots
  int32_t max_samples = 0;   // rows through the head; at least slots
  int64_t free_blocks = 0;   // free now, or held by nobody but the prefix cache
  double tpot_target = 0;    // seconds between the tokens of a decoding sequence; 0: no limit
  int32_t min_prefill = 16;  // tokens that prefill gets even where decoding alone takes longer than the target

  friend bool operator==(const PlanLimits&, const PlanLimits&) = default;
};

// Part of a step: the next `tokens` known tokens of a sequence and room for `drafts` proposals behind them. It is
// sampled when it reaches the last known token.
struct PlannedPart {
  int32_t sequence = 0;  // index of its view
  int32_t tokens = 0;
  int32_t drafts = 0;

  friend bool operator==(const PlannedPart&, const PlannedPart&) = default;
};

struct StepPlan {
  std::vector<int32_t> preempted;  // running sequences that give up everything before the step, youngest first
  std::vector<int32_t> admitted;   // waiting sequences that get a slot, oldest first; each has a part
  std::vector<PlannedPart> parts;  // at most one a sequence
  StepLoad load;
  double seconds = 0;                 // predicted
  std::vector<uint8_t> is_preempted;  // [sequences]
};

// sequences: oldest first, running and waiting mixed. Writes to `plan`, whose memory is used again. If any sequence is
// running or fits, the plan has at least one part or at least one preemption.
void plan_step(std::span<const SequenceView> sequences, const PlanLimits& limits, const CostModel& cost,
               StepPlan& plan);

// How many of `left` tokens the next step takes when it can take `budget`: all, or so many that at least `tail` are
// left for the last one; 0 when neither is possible.
int32_t chunk_of(int32_t left, int32_t tail, int32_t budget);

}  // namespace mdi
