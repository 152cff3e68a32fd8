// Five sequences under bounded replay, on any backend: a prompt in chunks, one that goes on from a snapshot among its
// dropped rows, two that go on from its end, and an exact one; their last steps are one step. Whatever a step may not
// read is NaN before it: rows that nothing has written in windows and blocks, and all buffers of the step before.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../engine/cached_runner.h"
#include "../model/padded_steps.h"
#include "kernels/cpu/quant.h"

namespace mdi::check {

struct StoryOptions {
  int32_t rows = 0;  // R
  ReplayForm form = ReplayForm::kAfterLastSource;
  int32_t chunk = 0;  // at most so many tokens of a prompt in a step
};

// What came of it, sequence behind sequence.
struct Story {
  std::vector<float> logits;                    // [sampled rows, vocab]
  std::vector<float> draft_logits, confidence;  // [sequences, block, vocab], [sequences, block]
  std::vector<float> windows;                   // [sequences, layers and draft stages, window, head_dim]: all of a ring
  std::vector<float> compressed, keys;          // [visible rows of each source, head_dim], [.., key_dim]
  std::vector<float> pending;                   // [unfinished pairs, 2, head_dim]
  std::vector<int32_t> history;                 // [sequences, depth]
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The first member that differs in a bit; empty: none.
inline std::string first_difference(const Story& a, const Story& b) {
  if (!same_bits(a.logits, b.logits)) return "logits";
  if (!same_bits(a.windows, b.windows)) return "window rows";
  if (!same_bits(a.compressed, b.compressed)) return "compressed rows";
  if (!same_bits(a.keys, b.keys)) return "index keys";
  if (!same_bits(a.pending, b.pending)) return "unfinished pairs";
  if (!same_bits(a.history, b.history)) return "engram history";
  if (!same_bits(a.draft_logits, b.draft_logits)) return "draft logits";
  if (!same_bits(a.confidence, b.confidence)) return "draft confidence";
  return "";
}

class StoryTeller {
 public:
  StoryTeller(const Model& model, std::shared_ptr<Context> context, const StoryOptions& options)
      : options_(options), poison_(*context) {
    const testing::TrackedAllocations tracked(*context);
    runner_ = std::make_unique<testing::CachedRunner>(model, context,
                                                      CacheSizes{.blocks = 20, .slots = 5, .snapshots = 2}, kMaxRows);
    const testing::Runner& r = runner_->runner;
    const DeviceBuffer* kept[] = {&r.buffers.tables, &r.state.blocks, &r.state.rings, &r.state.pending,
                                  &r.state.history};
    for (const auto& [at, bytes] : tracked.sizes()) {
      const void* p = at;
      if (std::any_of(std::begin(kept), std::end(kept), [p](const auto* b) { return b->template as<void>() == p; })) {
        continue;
      }
      scratch_.emplace_back(at, bytes);
    }
    runner_->form = options.form;
    runner_->before_step = [this] {
      for (const auto& [at, bytes] : scratch_) poison_.fill(at, bytes);
    };
  }

  Story tell() {
    const auto opening = testing::some_tokens(kOpening, 3);
    // Its snapshots: one among the dropped rows, which has nothing of the upper layers, and one at its end.
    Told first = admit(opening, "");
    run(first, slice(opening, 0, kBranch), first_kept(0, kOpening, 0));
    publish(first, "lower");
    run(first, slice(opening, kBranch, kOpening), first.floor);
    publish(first, "whole");
    for (const int32_t token : {7, 11, 7}) run(first, {token}, first.floor);

    const auto branch = join(slice(opening, 0, kBranch), testing::some_tokens(130, 4));
    Told second = admit(branch, "lower");
    run_rest(second, branch, first_kept(0, static_cast<int32_t>(branch.size()), 0));
    // Not longer than 128: nothing is dropped then, and the windows reach back into the first one's kept rows.
    const auto shorter = join(opening, testing::some_tokens(41, 5));
    Told third = admit(shorter, "whole");
    run_rest(third, shorter, first_kept(kOpening, static_cast<int32_t>(shorter.size()), first.floor));
    // Longer: its windows hold rows of the first one that the kept ones must not see.
    const auto longer = join(opening, testing::some_tokens(151, 6));
    Told fourth = admit(longer, "whole");
    const auto end = static_cast<int32_t>(longer.size());
    fourth.floor = first_kept(kOpening, end, first.floor);
    const auto chunks = plan_replay(options_.rows, kOpening, end, options_.chunk);
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
      run(fourth, slice(longer, chunks[i].start, chunks[i].start + chunks[i].count), fourth.floor);
    }
    const auto alone = testing::some_tokens(31, 8);
    Told exact = admit(alone, "");
    step({{&exact, alone},
          {&fourth, slice(longer, chunks.back().start, end)},
          {&first, {5}},
          {&second, testing::some_tokens(6, 9), 2}});

    Story story;
    for (Told* told : {&first, &second, &third, &fourth, &exact}) {
      story.logits.insert(story.logits.end(), told->logits.begin(), told->logits.end());
      add_state(told->sequence, story);
      add_draft(*told, story);
    }
    return story;
  }

  // Whether logits are numbers where the windows hold what was computed, and none where they reach further back.
  bool stale_rows_show() {
    const auto tokens = testing::some_tokens(101, 3);
    const auto numbers = [&](int32_t floor) {
      Told told = admit(tokens, "");
      run(told, slice(tokens, 0, 100), 96);
      told.logits.clear();
      run(told, slice(tokens, 100, 101), floor);
      return std::all_of(told.logits.begin(), told.logits.end(), [](float v) { return std::isfinite(v); });
    };
    return numbers(96) && !numbers(0);
  }

 private:
  static constexpr int32_t kOpening = 200, kBranch = 60, kMaxRows = 256;

  struct Told {
    testing::CachedSequence sequence;
    int32_t floor = 0;  // replay_from
    std::vector<float> logits = {};
  };
  struct Part {
    Told* told;
    std::vector<int32_t> tokens;
    std::optional<int32_t> accepted = {};
  };

  static std::vector<int32_t> slice(const std::vector<int32_t>& v, int64_t begin, int64_t end) {
    return testing::slice(v, begin, end);
  }
  static std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  int32_t first_kept(int32_t start, int32_t end, int32_t before) const {
    const ReplaySegment segment = replay_segment(options_.rows, start, end);
    return segment.drops() ? segment.kept_from : before;
  }

  // From the snapshot with that history; "": from nothing.
  Told admit(const std::vector<int32_t>& prompt, const std::string& history) {
    Told told{.sequence = runner_->admit(prompt, [&](int64_t, std::string_view h) { return h == history; })};
    const int32_t expected = history == "lower" ? kBranch : history == "whole" ? kOpening : 0;
    if (told.sequence.length() != expected) {
      throw Error("replay story", "expected a hit of " + std::to_string(expected) + " tokens, found " +
                                      std::to_string(told.sequence.length()));
    }
    return told;
  }
  void publish(const Told& told, const std::string& history) {
    if (!runner_->publish(told.sequence, history)) throw Error("replay story", "no room for a snapshot");
  }
  void step(const std::vector<Part>& parts) {
    std::vector<testing::CachedRunner::Part> of;
    for (const Part& part : parts) {
      of.push_back({.sequence = &part.told->sequence,
                    .tokens = part.tokens,
                    .accepted = part.accepted,
                    .replay_from = part.told->floor});
    }
    const auto logits = runner_->step(of);
    for (size_t i = 0; i < parts.size(); ++i) {
      auto& all = parts[i].told->logits;
      all.insert(all.end(), logits[i].begin(), logits[i].end());
    }
  }
  void run(Told& told, const std::vector<int32_t>& tokens, int32_t floor) {
    told.floor = floor;
    const auto start = told.sequence.length(), end = start + static_cast<int32_t>(tokens.size());
    // Cut so that kept rows stay together: the end of what is run here is not the segment's where all is dropped.
    const int32_t rows = floor > start && floor < end ? end - floor : 0;
    for (const ReplayChunk& chunk : plan_replay(rows, start, end, options_.chunk)) {
      step({{&told, slice(tokens, chunk.start - start, chunk.start - start + chunk.count)}});
    }
  }
  void run_rest(Told& told, const std::vector<int32_t>& prompt, int32_t floor) {
    run(told, slice(prompt, told.sequence.length(), static_cast<int64_t>(prompt.size())), floor);
  }

  void copy_out(void* to, const void* from, int64_t bytes) {
    Context& context = *runner_->runner.context;
    context.ops->copy_out(context, to, from, bytes);
  }

  void add_state(const testing::CachedSequence& s, Story& story) {
    const StatePools& state = runner_->runner.state;
    const RingView first = state.ring(0);
    const int64_t slot = s.slot.id(), dim = first.row.head_dim;
    std::vector<std::byte> rings(static_cast<size_t>(first.slot_stride));
    copy_out(rings.data(), first.base + slot * first.slot_stride, first.slot_stride);
    for (int64_t row = 0; row < int64_t{state.layers} * state.window; ++row) {
      const std::byte* at = rings.data() + row * first.row.bytes();
      const size_t to = story.windows.size();
      story.windows.resize(to + static_cast<size_t>(dim));
      cpu::act_dequant(WindowRow::codes(at), first.row.scales(at), dim, &story.windows[to]);
    }
    std::vector<std::byte> block(static_cast<size_t>(state.cache.block_bytes));
    for (size_t b = 0; b < s.blocks.ids().size(); ++b) {
      copy_out(block.data(), state.blocks.as<std::byte>() + s.blocks.ids()[b] * state.cache.block_bytes,
               state.cache.block_bytes);
      for (const SourceLayout& l : state.cache.sources) {
        const int64_t left = s.length() / l.ratio - static_cast<int64_t>(b) * l.rows;
        for (int64_t row = 0; row < std::min<int64_t>(left, l.rows); ++row) {
          const size_t kv = story.compressed.size(), key = story.keys.size();
          story.compressed.resize(kv + static_cast<size_t>(l.head_dim));
          story.keys.resize(key + static_cast<size_t>(l.key_dim));
          cpu::fp4_dequant_e4m3(l.kv_codes_at(block.data(), row), l.kv_scales_at(block.data(), row), l.head_dim,
                                &story.compressed[kv]);
          cpu::fp4_dequant_e8m0(l.key_codes_at(block.data(), row), l.key_scales_at(block.data(), row), l.key_dim,
                                &story.keys[key]);
        }
      }
    }
    for (size_t k = 0; k < state.cache.sources.size(); ++k) {
      if (s.length() % state.cache.sources[k].ratio == 0) continue;
      const size_t to = story.pending.size(), pair = static_cast<size_t>(2 * state.head_dim);
      story.pending.resize(to + pair);
      copy_out(&story.pending[to], state.pending_of(static_cast<int>(k)) + slot * state.pending_stride(),
               static_cast<int64_t>(pair * sizeof(float)));
    }
    const size_t to = story.history.size();
    story.history.resize(to + static_cast<size_t>(state.history_depth));
    copy_out(&story.history[to], state.history.as<int32_t>() + slot * state.history_depth,
             state.history_depth * static_cast<int64_t>(sizeof(int32_t)));
  }

  // The chain is led along fixed tokens.
  void add_draft(const Told& told, Story& story) {
    testing::Runner& r = runner_->runner;
    if (r.model.draft_stages() == 0) return;
    DraftBuffers buffers(*r.context, r.model, 1);
    const DraftSequence sequence{
        .slot = told.sequence.slot.id(), .length = told.sequence.length(), .anchor = 13, .replay_from = told.floor};
    const auto choose = [&story](size_t, int i, std::span<const float> logits) {
      story.draft_logits.insert(story.draft_logits.end(), logits.begin(), logits.end());
      return 17 + 3 * i;
    };
    const Drafts drafts = draft(*r.context, r.model, r.state, {&sequence, 1}, r.buffers, buffers, choose);
    story.confidence.insert(story.confidence.end(), drafts.confidence[0].begin(), drafts.confidence[0].end());
  }

  StoryOptions options_;
  testing::Poison poison_;
  std::unique_ptr<testing::CachedRunner> runner_;
  std::vector<std::pair<void*, int64_t>> scratch_;
};

}  // namespace mdi::check
