// What a later step can read of a sequence, as bytes, and steps of replayed sequences.
#pragma once

#include <algorithm>
#include <optional>

#include "model/draft.h"
#include "model/replay.h"
#include "tiny_model.h"

namespace mdi::testing {

// One sequence's part of a step; every token that the upper layers compute is sampled unless `sampled` is false.
struct ReplayPart {
  int32_t slot = 0, start = 0;
  std::vector<int32_t> tokens;
  int32_t replay_from = 0;
  bool sampled = true;
  std::optional<int32_t> accepted = {};
};

// Runs and commits a step; returns the logits of each part's sampled tokens, in order.
inline std::vector<std::vector<float>> run_replayed(Runner& r, const std::vector<ReplayPart>& parts,
                                                    ReplayForm form = ReplayForm::kAfterLastSource,
                                                    const ForwardHooks& hooks = {}) {
  std::vector<std::vector<int32_t>> samples;
  std::vector<StepSequence> sequences;
  std::vector<int32_t> accepted;
  for (const ReplayPart& part : parts) {
    const auto count = static_cast<int32_t>(part.tokens.size());
    const int32_t dropped = part.sampled ? std::clamp(part.replay_from - part.start, 0, count) : count;
    samples.push_back(iota_blocks(dropped, count - dropped));
    accepted.push_back(part.accepted.value_or(count));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    StepSequence sequence;
    sequence.slot = parts[i].slot;
    sequence.start = parts[i].start;
    sequence.tokens = parts[i].tokens;
    sequence.blocks = r.blocks[static_cast<size_t>(parts[i].slot)];
    sequence.sample_tokens = samples[i];
    sequence.replay_from = parts[i].replay_from;
    sequences.push_back(sequence);
  }
  const Step step = make_step(r.model, r.state, sequences, form);
  forward(*r.context, r.model, r.state, step, r.buffers, hooks);
  commit(*r.context, r.model, r.state, step, r.buffers, accepted);
  const auto* logits = r.buffers.logits.as<float>();
  std::vector<std::vector<float>> out;
  for (const auto& rows : samples) {
    const auto size = static_cast<int64_t>(rows.size()) * r.model.config().vocab_size;
    out.emplace_back(logits, logits + size);
    logits += size;
  }
  return out;
}

// Tokens [start, end) of `tokens` as a segment with R = rows in chunks of at most `limit`; the kept rows' logits.
inline std::vector<float> run_segment(Runner& r, int32_t slot, const std::vector<int32_t>& tokens, int32_t start,
                                      int32_t end, int32_t rows, int32_t limit, int32_t floor = 0,
                                      ReplayForm form = ReplayForm::kAfterLastSource) {
  const ReplaySegment segment = replay_segment(rows, start, end);
  const int32_t from = segment.drops() ? segment.kept_from : floor;
  std::vector<float> all;
  for (const ReplayChunk& chunk : plan_replay(rows, start, end, limit)) {
    const auto logits =
        run_replayed(r, {{slot, chunk.start, slice(tokens, chunk.start, chunk.start + chunk.count), from}}, form);
    all.insert(all.end(), logits[0].begin(), logits[0].end());
  }
  return all;
}

// State of the layers up to the last KV source, and of all: rings, pending rows where the length is odd, history,
// visible cache rows. Upper rings count from `replay_from` on.
inline std::vector<std::byte> lower_state(const Runner& r, int32_t slot, int32_t length) {
  std::vector<std::byte> bytes;
  const auto add = [&bytes](const void* from, int64_t size) {
    const auto* b = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), b, b + size);
  };
  const StatePools& s = r.state;
  for (int layer = 0; layer <= last_source_layer(r.model.config()); ++layer) {
    const RingView ring = s.ring(layer);
    for (int32_t p = std::max(0, length - s.window); p < length; ++p) {
      add(ring.base + slot * ring.slot_stride + p % s.window * ring.row.bytes(), ring.row.bytes());
    }
  }
  for (size_t k = 0; k < s.cache.sources.size(); ++k) {
    const SourceCache cache = s.source(static_cast<int>(k));
    const SourceLayout& l = cache.layout;
    if (l.ratio == 2 && length % 2 == 1) {
      add(s.pending_of(static_cast<int>(k)) + slot * s.pending_stride(),
          2 * s.head_dim * static_cast<int64_t>(sizeof(float)));
    }
    const auto& blocks = r.blocks[static_cast<size_t>(slot)];
    for (int32_t j = 0; j < length / l.ratio; ++j) {
      std::byte* block = cache.blocks + blocks[static_cast<size_t>(j / l.rows)] * cache.block_bytes;
      const int32_t row = j % l.rows;
      add(l.key_codes_at(block, row), l.key_dim / 2);
      add(l.key_scales_at(block, row), l.key_dim / 32);
      add(l.kv_codes_at(block, row), l.head_dim / 2);
      add(l.kv_scales_at(block, row), l.head_dim / 16);
    }
  }
  add(s.history.as<int32_t>() + slot * s.history_depth, s.history_depth * static_cast<int64_t>(sizeof(int32_t)));
  return bytes;
}

inline std::vector<std::byte> upper_state(const Runner& r, int32_t slot, int32_t length, int32_t replay_from) {
  std::vector<std::byte> bytes;
  const StatePools& s = r.state;
  for (int layer = last_source_layer(r.model.config()) + 1; layer < s.layers; ++layer) {
    const RingView ring = s.ring(layer);
    for (int32_t p = std::max({0, length - s.window, replay_from}); p < length; ++p) {
      const std::byte* row = ring.base + slot * ring.slot_stride + p % s.window * ring.row.bytes();
      bytes.insert(bytes.end(), row, row + ring.row.bytes());
    }
  }
  return bytes;
}

// Every ring row that nothing has written is a NaN.
inline void poison_rings(Runner& r) {
  const RingView ring = r.state.ring(0);
  std::memset(ring.base, 0xFF, static_cast<size_t>(r.state.slots * ring.slot_stride));
}

// The same of the layers above the last KV source, in one slot.
inline void poison_rings_above_source(Runner& r, int32_t slot = 0) {
  for (int layer = last_source_layer(r.model.config()) + 1; layer < r.state.layers; ++layer) {
    const RingView ring = r.state.ring(layer);
    std::memset(ring.base + slot * ring.slot_stride, 0xFF, static_cast<size_t>(ring.window * ring.row.bytes()));
  }
}

}  // namespace mdi::testing
