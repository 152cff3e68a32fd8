// Sequences on the tiny checkpoint whose blocks, slots and snapshots the cache room hands out, step by step by hand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../model/replay_state.h"
#include "cache/cache.h"
#include "core/error.h"
#include "model/state_copy.h"

namespace mdi::testing {

static_assert(kCacheBlockTokens == kBlockTokens);

inline bool accept_exact(int64_t, std::string_view history) { return history.empty(); }

struct CachedSequence {
  PrefixKey key;
  BlockTable blocks;
  SlotRef slot;
  std::string history;  // of the snapshot that it went on from

  int32_t length() const { return static_cast<int32_t>(key.length()); }
};

// On any backend. Memory that nothing has written is NaN in every format, and so is a slot before it is handed out.
class CachedRunner {
 public:
  CachedRunner(const Model& model, const CacheSizes& sizes, int32_t max_rows = 512)
      : CachedRunner(model, make_cpu_context(2), sizes, max_rows) {}
  CachedRunner(const Model& model, std::shared_ptr<Context> context, const CacheSizes& sizes, int32_t max_rows = 512)
      : runner(model, std::move(context), sizes.slots, int64_t{sizes.blocks} / sizes.slots * kBlockTokens, max_rows),
        cache({.blocks = sizes.blocks / sizes.slots * sizes.slots, .slots = sizes.slots, .snapshots = sizes.snapshots}),
        snapshots(*runner.context, runner.state, sizes.snapshots) {
    fill(runner.state.blocks.as<std::byte>(), runner.state.blocks_count * runner.state.cache.block_bytes, 0xFF);
    for (int64_t s = 0; s < runner.state.slots; ++s) poison_slot(s);
    for (int64_t s = 0; s < snapshots.count(); ++s) save_slot(*runner.context, runner.state, 0, snapshots, s);
  }

  // A sequence that holds as much of the prompt as is known. `images` are of the prompt.
  CachedSequence admit(const std::vector<int32_t>& prompt, const AcceptSnapshot& accept = accept_exact,
                       const std::vector<ImagePart>& images = {}, const std::string& salt = {}) {
    const auto key_of = [&](int64_t tokens) {
      PrefixKey key(cache.hasher, salt);
      for (const ImagePart& image : images) key.add_image(image);
      key.append(std::span(prompt).first(static_cast<size_t>(tokens)));
      return key;
    };
    const PrefixKey whole = key_of(static_cast<int64_t>(prompt.size()));
    PrefixHit hit = cache.prefix.find(whole, whole.length() - 1, accept);
    CachedSequence s{.key = key_of(hit.position),
                     .blocks = std::move(hit.blocks),
                     .slot = cache.slots.take(),
                     .history = hit.history};
    poison_slot(s.slot.id());
    if (hit.position > 0) {
      restore_slot(*runner.context, runner.state, s.slot.id(), snapshots, hit.snapshot.id());
    } else {
      clear_slot(*runner.context, runner.state, s.slot.id());
    }
    branch = hit.branch;
    return s;
  }

  struct Part {
    CachedSequence* sequence;
    std::vector<int32_t> tokens;
    std::optional<int32_t> accepted = {};
    int32_t replay_from = 0;
    std::vector<uint8_t> dead = {};
    std::vector<bf16> image_rows = {};
  };
  // One step; the logits of every token that the upper layers compute.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
    std::vector<CopyBlock> copies;
    for (const Part& part : parts) {
      CachedSequence& s = *part.sequence;
      const auto count = static_cast<int64_t>(part.tokens.size());
      if (!cache.prefix.make_room(s.blocks.needed(s.length(), count)) ||
          !s.blocks.reserve(cache.blocks, s.length(), count, copies)) {
        throw Error("test", "no room");
      }
    }
    for (const CopyBlock& copy : copies) copy_block(*runner.context, runner.state, copy.from, copy.to);
    copied += static_cast<int64_t>(copies.size());
    std::vector<std::vector<int32_t>> samples;
    std::vector<StepSequence> sequences;
    std::vector<int32_t> accepted;
    for (const Part& part : parts) {
      const auto count = static_cast<int32_t>(part.tokens.size());
      const int32_t dropped = std::clamp(part.replay_from - part.sequence->length(), 0, count);
      samples.push_back(iota_blocks(dropped, count - dropped));
      accepted.push_back(part.accepted.value_or(count));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      StepSequence sequence;
      sequence.slot = parts[i].sequence->slot.id();
      sequence.start = parts[i].sequence->length();
      sequence.tokens = parts[i].tokens;
      sequence.dead = parts[i].dead;
      sequence.image_rows = parts[i].image_rows;
      sequence.blocks = parts[i].sequence->blocks.ids();
      sequence.sample_tokens = samples[i];
      sequence.replay_from = parts[i].replay_from;
      sequences.push_back(sequence);
    }
    if (before_step) before_step();
    const Step step = make_step(runner.model, runner.state, sequences, form);
    forward(*runner.context, runner.model, runner.state, step, runner.buffers);
    commit(*runner.context, runner.model, runner.state, step, runner.buffers, accepted);
    std::vector<std::vector<float>> out;
    const auto* logits = runner.buffers.logits.as<float>();
    for (size_t i = 0; i < parts.size(); ++i) {
      out.emplace_back(samples[i].size() * static_cast<size_t>(runner.model.config().vocab_size));
      runner.context->ops->copy_out(*runner.context, out[i].data(), logits,
                                    static_cast<int64_t>(out[i].size() * sizeof(float)));
      logits += out[i].size();
      parts[i].sequence->key.append(std::span(parts[i].tokens).first(static_cast<size_t>(accepted[i])));
    }
    return out;
  }

  // `tokens` behind what the sequence has, in chunks; all logits.
  std::vector<float> run(CachedSequence& s, const std::vector<int32_t>& tokens, int64_t chunk = 512,
                         int32_t replay_from = 0) {
    std::vector<float> all;
    const auto total = static_cast<int64_t>(tokens.size());
    for (int64_t at = 0; at < total; at += chunk) {
      const auto logits = step(
          {{.sequence = &s, .tokens = slice(tokens, at, std::min(at + chunk, total)), .replay_from = replay_from}});
      all.insert(all.end(), logits[0].begin(), logits[0].end());
    }
    return all;
  }

  bool publish(const CachedSequence& s, const std::string& history = {}) {
    SnapshotRef buffer = cache.prefix.take_snapshot();
    if (!buffer) return false;
    save_slot(*runner.context, runner.state, s.slot.id(), snapshots, buffer.id());
    return cache.prefix.publish(s.key, s.blocks, s.key.length(), history, std::move(buffer));
  }

  CachedSequence fork(const CachedSequence& s) {
    CachedSequence copy{.key = s.key, .blocks = s.blocks.fork(), .slot = cache.slots.take(), .history = s.history};
    poison_slot(copy.slot.id());
    copy_slot(*runner.context, runner.state, s.slot.id(), copy.slot.id());
    return copy;
  }

  // Everything that a later step can read. On the CPU.
  std::vector<std::byte> state(const CachedSequence& s, int32_t replay_from = 0) {
    runner.blocks[static_cast<size_t>(s.slot.id())].assign(s.blocks.ids().begin(), s.blocks.ids().end());
    auto bytes = lower_state(runner, s.slot.id(), s.length());
    const auto upper = upper_state(runner, s.slot.id(), s.length(), replay_from);
    bytes.insert(bytes.end(), upper.begin(), upper.end());
    return bytes;
  }

  // What the draft layers propose after `anchor`, and how sure they are.
  std::pair<std::vector<int32_t>, std::vector<float>> propose(const CachedSequence& s, int32_t anchor) {
    DraftBuffers drafts(*runner.context, runner.model, 1);
    const DraftSequence sequence{.slot = s.slot.id(), .length = s.length(), .anchor = anchor};
    Drafts out = draft(*runner.context, runner.model, runner.state, {&sequence, 1}, runner.buffers, drafts,
                       [](size_t, int, std::span<const float> row) {
                         return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
                       });
    return {std::move(out.tokens[0]), std::move(out.confidence[0])};
  }

  void poison_slot(int64_t slot) {
    StatePools& s = runner.state;
    const RingView ring = s.ring(0);
    fill(ring.base + slot * ring.slot_stride, ring.slot_stride, 0xFF);
    fill(s.pending_of(0) + slot * s.pending_stride(), s.pending_stride() * static_cast<int64_t>(sizeof(float)), 0xFF);
    fill(s.history.as<int32_t>() + slot * s.history_depth, s.history_depth * static_cast<int64_t>(sizeof(int32_t)),
         0x7F);
  }
  void fill(void* at, int64_t bytes, uint8_t value) {
    const std::vector<uint8_t> values(static_cast<size_t>(bytes), value);
    runner.context->ops->copy_in(*runner.context, at, values.data(), bytes);
  }

  Runner runner;
  Cache cache;
  SnapshotBuffers snapshots;
  ReplayForm form = ReplayForm::kAfterLastSource;
  std::function<void()> before_step = {};
  int64_t branch = 0;  // of the last admission
  int64_t copied = 0;  // blocks
};

}  // namespace mdi::testing
