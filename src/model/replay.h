// Bounded replay (spec model.md 13): layers after the last KV source produce nothing that later tokens need but their
// windows, so a prompt may run them on its last R tokens only. It is an approximation.
//
// What a sequence's state is follows from one number a segment: the position from which on the upper layers computed
// rows (StepSequence::replay_from). Their windows hold nothing older. How a segment is cut into chunks does not matter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/config.h"

namespace mdi {

enum class ReplayForm : uint8_t {
  kAfterLastSource,  // the layers after the last KV source run on the kept rows
  kFromLastSource,   // and so do that layer's own attention and experts: fewer operations, the same bits
};

struct ReplaySettings {
  int32_t rows = 0;  // R; 0: exact, every layer runs on every row
  ReplayForm form = ReplayForm::kAfterLastSource;
};

// The layer that produces the last global KV; -1 in a model without KV sources, which cannot be replayed.
int last_source_layer(const ModelConfig& config);

// Tokens [start, end) of a prompt that one prefill added to a sequence; the upper layers ran on [kept_from, end).
// A segment that drops nothing (kept_from = start) leaves the state that decoding its tokens leaves, and is not worth
// recording.
struct ReplaySegment {
  int32_t start = 0, end = 0, kept_from = 0;
  bool drops() const { return kept_from > start; }
  bool operator==(const ReplaySegment&) const = default;
};

// The segment that prefilling [start, end) makes with R = rows (0: exact): segments not longer than R drop nothing.
ReplaySegment replay_segment(int32_t rows, int32_t start, int32_t end);

// StepSequence::replay_from of every step of a sequence from its last segment on: what it was before in a segment that
// drops nothing.
int32_t replay_from(std::span<const ReplaySegment> segments);

// How many tokens of a segment to run next, from position `at`, when a step has room for `limit` of them; at least one
// if both limit and what is left are. A segment never ends with a chunk shorter than min(R, its length), so that the
// kept rows run together, unless the limit is smaller than that.
int32_t next_chunk(int32_t rows, const ReplaySegment& segment, int32_t at, int32_t limit);

struct ReplayChunk {
  int32_t start = 0, count = 0;
  int32_t kept = 0;  // of the last tokens; the upper layers run on these
  bool operator==(const ReplayChunk&) const = default;
};

// A whole segment in steps of at most `limit` tokens. Throws mdi::Error for limit < 1, rows < 0 and end < start.
std::vector<ReplayChunk> plan_replay(int32_t rows, int32_t start, int32_t end, int32_t limit);

// What to run to have the state of a sequence again: its first `length` tokens in pieces, each with the replay_from
// that all of its steps take. Cut them into steps at will. `segments` are in ascending order; a segment that `length`
// cuts short of its kept rows is an mdi::Error, because the sequence never had that state.
struct ReplayPiece {
  int32_t start = 0, end = 0, replay_from = 0;
  bool operator==(const ReplayPiece&) const = default;
};
std::vector<ReplayPiece> replay_pieces(std::span<const ReplaySegment> segments, int32_t length);

}  // namespace mdi
