#include "engine/sequence.h"

#include <algorithm>
#include <cstring>

namespace mdi {

int32_t replay_from_at(const Sequence& s, int32_t at) {
  for (const ReplayPiece& piece : s.pieces) {
    if (at >= piece.start && at < piece.end) return piece.replay_from;
  }
  return replay_from(s.segments);
}

std::string encode_history(const SnapshotHistory& history) {
  if (history.lower_only) return "lower";
  if (history.replay_from == 0) return {};
  std::string text(sizeof history.replay_from, '\0');
  std::memcpy(text.data(), &history.replay_from, text.size());
  return text;
}

SnapshotHistory decode_history(std::string_view text) {
  SnapshotHistory history;
  history.lower_only = text.size() == 5;
  if (text.size() == sizeof history.replay_from) std::memcpy(&history.replay_from, text.data(), text.size());
  return history;
}

SnapshotHistory history_at(const Sequence& s, int32_t position) {
  SnapshotHistory history;
  for (const ReplaySegment& segment : s.segments) {
    if (segment.start >= position) break;
    // Inside the kept rows too, the whole of them is needed to go on; such positions are not published.
    history.lower_only = position < segment.end;
    history.replay_from = segment.kept_from;
  }
  return history;
}

bool accepts_snapshot(const Sequence& s, int32_t rows, int64_t position, const SnapshotHistory& history) {
  if (s.generated_count() == 0) return !history.lower_only || s.prompt() - position >= rows;
  for (const ReplaySegment& segment : s.segments) {
    if (position < segment.start || position >= segment.end) continue;
    return position <= segment.kept_from;  // the windows of the kept rows do not look further back
  }
  return !history.lower_only && history.replay_from == history_at(s, static_cast<int32_t>(position)).replay_from;
}

void plan_segments(Sequence& s, int32_t rows, int32_t position, const SnapshotHistory& history) {
  if (s.generated_count() == 0) {
    s.segments.clear();
    // The state that was found, as one segment that gives it again.
    if (!history.lower_only && history.replay_from > 0) {
      s.segments.push_back({.start = 0, .end = position, .kept_from = history.replay_from});
    }
    const ReplaySegment rest = replay_segment(rows, position, s.prompt());
    if (rest.drops()) s.segments.push_back(rest);
    // Tokens [0, position) of a lower-only state were dropped by the segment that goes on there.
    if (history.lower_only) {
      s.segments = {{.start = 0, .end = s.prompt(), .kept_from = s.prompt() - rows}};
    }
  }
  s.pieces.clear();
  if (!s.segments.empty()) s.pieces = replay_pieces(s.segments, s.known());
}

}  // namespace mdi
