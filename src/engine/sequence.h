// One sample of a request as the engine keeps it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cache/cache.h"
#include "engine/request.h"
#include "engine/stop_strings.h"
#include "engine/watchdog.h"
#include "model/replay.h"
#include "text/detokenizer.h"

namespace mdi {

struct SlowMask;

// What the samples of a request share.
struct RequestState {
  RequestId id = 0;
  uint64_t turn = 0;    // in the order of service: twice the id, or one more than that of whom it was put behind
  bool paused = false;  // waits until it is resumed
  Request request;
  double submitted = 0;  // on the engine's clock
  double deadline = 0;   // 0: none
  bool forked = false;   // all samples have their sequence
  int32_t open = 0;      // samples that have not ended
  int32_t cached_tokens = 0;
};

struct Sequence {
  Sequence(std::shared_ptr<RequestState> owned, int32_t sample_index, PrefixKey prefix_key)
      : owner(std::move(owned)), sample(sample_index), key(std::move(prefix_key)), stops(owner->request.stop) {}

  std::shared_ptr<RequestState> owner;
  int32_t sample;
  std::vector<int32_t> tokens;  // prompt and generated ones; the last is known and not yet run
  int32_t committed = 0;        // tokens that the state holds

  // Held while running, empty while waiting.
  SlotRef slot;
  BlockTable blocks;
  PrefixKey key;  // all known tokens but perhaps the last ones

  // How the prompt was prefilled: segments that dropped rows (model/replay.h). Fixed once the first token is generated,
  // so that a recomputation gives the same state.
  std::vector<ReplaySegment> segments;
  std::vector<ReplayPiece> pieces;    // of all known tokens, made at admission; later tokens decode
  std::vector<int64_t> snapshots_at;  // positions at which a step ends and the state is published, ascending

  bool counted = false;  // has been admitted once: it no longer counts as queued
  Progress progress;
  double stopped_at = 0;       // when it was last preempted or paused
  int32_t admissions = 0;      // since it last generated a token
  int32_t part = -1;           // of the step at hand
  int32_t in_flight = 0;       // steps that it is part of and whose tokens have not reached the host
  int32_t awaited = 0;         // tokens behind `tokens` that the device has chosen and the host has not seen: 0 or 1
  int32_t awaited_sample = 0;  // which sample of the step in flight it is
  TokenHistory history;        // where penalties need it
  std::optional<Detokenizer> detokenizer;
  StopStrings stops;
  std::shared_ptr<SlowMask> slow_mask;  // asked for, for the place behind the last token
  double first_token_at = 0, last_token_at = 0;
  std::optional<EndReason> ended;

  const Request& request() const { return owner->request; }
  // Whether nothing more is to be run for it, though its last token may not have reached the host yet.
  bool leaves() const {
    return ended.has_value() || (awaited > 0 && generated_count() + awaited >= owner->request.max_tokens);
  }
  // Whether it has ended with a whole answer, which others may go on from.
  bool answered() const { return ended == EndReason::kStop || ended == EndReason::kLength; }
  bool running() const { return static_cast<bool>(slot); }
  int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  int32_t prompt() const { return static_cast<int32_t>(owner->request.prompt.size()); }
  int32_t generated_count() const { return known() - prompt(); }
  std::span<const int32_t> generated() const { return std::span(tokens).subspan(owner->request.prompt.size()); }
  bool older_than(const Sequence& other) const {
    const auto order = [](const Sequence& s) { return std::tuple(s.owner->turn, s.owner->id, s.sample); };
    return order(*this) < order(other);
  }
};

// The windows of the upper layers hold nothing older than this once position `at` is reached (StepSequence).
int32_t replay_from_at(const Sequence& sequence, int32_t at);

// What a snapshot's key says of how the state came to be. A lower-only one was taken inside a segment that drops rows:
// the upper layers' windows are not there, and none may look at them.
struct SnapshotHistory {
  bool lower_only = false;
  int32_t replay_from = 0;
};
std::string encode_history(const SnapshotHistory& history);
SnapshotHistory decode_history(std::string_view text);
SnapshotHistory history_at(const Sequence& sequence, int32_t position);

// Whether a sequence may go on from a snapshot, with R = rows. One that has generated nothing may take any state whose
// windows its own tail will not look past; one that has must get the state that it had.
bool accepts_snapshot(const Sequence& sequence, int32_t rows, int64_t position, const SnapshotHistory& history);

// Segments, pieces and stops of a sequence that goes on from `position` with the state that `history` describes.
void plan_segments(Sequence& sequence, int32_t rows, int32_t position, const SnapshotHistory& history);

}  // namespace mdi
