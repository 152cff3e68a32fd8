#include "model/replay.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mdi {

int last_source_layer(const ModelConfig& config) {
  return config.kv_source_layers.empty() ? -1 : config.kv_source_layers.back();
}

ReplaySegment replay_segment(int32_t rows, int32_t start, int32_t end) {
  if (rows < 0) throw Error("replay", "expected 0 or more rows, found " + std::to_string(rows));
  if (start < 0 || end < start) {
    throw Error("replay", "tokens " + std::to_string(start) + " to " + std::to_string(end) + " are not a segment");
  }
  const bool drops = rows > 0 && end - start > rows;
  return {.start = start, .end = end, .kept_from = drops ? end - rows : start};
}

int32_t replay_from(std::span<const ReplaySegment> segments) {
  for (size_t i = segments.size(); i-- > 0;) {
    if (segments[i].drops()) return segments[i].kept_from;
  }
  return 0;
}

int32_t next_chunk(int32_t rows, const ReplaySegment& segment, int32_t at, int32_t limit) {
  const int32_t left = segment.end - at;
  const int32_t tail = std::min(rows, segment.end - segment.start);
  const int32_t count = std::min(limit, left);
  if (left - count == 0 || left - count >= tail || left <= tail) return count;
  return left - tail;
}

std::vector<ReplayChunk> plan_replay(int32_t rows, int32_t start, int32_t end, int32_t limit) {
  if (limit < 1) throw Error("replay", "expected chunks of 1 or more tokens, found " + std::to_string(limit));
  const ReplaySegment segment = replay_segment(rows, start, end);
  std::vector<ReplayChunk> chunks;
  for (int32_t at = start; at < end;) {
    const int32_t count = next_chunk(rows, segment, at, limit);
    chunks.push_back({.start = at, .count = count, .kept = std::clamp(at + count - segment.kept_from, 0, count)});
    at += count;
  }
  return chunks;
}

std::vector<ReplayPiece> replay_pieces(std::span<const ReplaySegment> segments, int32_t length) {
  std::vector<ReplayPiece> pieces;
  ReplayPiece piece;
  for (const ReplaySegment& s : segments) {
    if (!s.drops() || s.start >= length) continue;
    if (length <= s.kept_from) {
      throw Error("replay", std::to_string(length) + " tokens end inside the dropped rows of a segment from " +
                                std::to_string(s.start) + " that is kept from " + std::to_string(s.kept_from));
    }
    piece.end = s.start;
    if (piece.end > piece.start) pieces.push_back(piece);
    piece = {.start = s.start, .end = s.start, .replay_from = s.kept_from};
  }
  piece.end = length;
  if (piece.end > piece.start) pieces.push_back(piece);
  return pieces;
}

}  // namespace mdi
