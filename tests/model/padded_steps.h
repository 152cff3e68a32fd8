// The same random steps run twice: as they are, and padded to a shape (model/padding.h) with poison in everything that
// no real row may read. Used by the test on the CPU and, with the work recorded, by the check on the GPU.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "model/padding.h"
#include "tiny_model.h"

namespace mdi::testing {

// Step shapes that take up to `sequences` sequences of up to `block` rows, with two widths of their block tables each.
inline std::vector<StepShape> padded_shapes(int32_t sequences, int32_t block, int32_t max_blocks) {
  std::vector<StepShape> shapes;
  for (int32_t s = 1; s <= sequences; s = s < sequences ? std::min(2 * s, sequences) : s + 1) {
    for (const int32_t rows : {s, s * block}) {
      for (const int32_t blocks : {std::max(max_blocks / 2, 1), max_blocks}) shapes.push_back({s, rows, blocks});
    }
  }
  return shapes;
}

// A backend's allocations with their sizes, while it is in force.
class TrackedAllocations {
 public:
  explicit TrackedAllocations(Context& context) : context_(context), plain_(context.ops) {
    current() = this;
    ops_ = *plain_;
    ops_.allocate = [](Context& c, int64_t bytes) {
      void* p = current()->plain_->allocate(c, bytes);
      current()->sizes_.emplace_back(p, bytes);
      return p;
    };
    context.ops = &ops_;
  }
  ~TrackedAllocations() { context_.ops = plain_; }
  TrackedAllocations(const TrackedAllocations&) = delete;
  TrackedAllocations& operator=(const TrackedAllocations&) = delete;
  const std::vector<std::pair<void*, int64_t>>& sizes() const { return sizes_; }

 private:
  static TrackedAllocations*& current() {
    static TrackedAllocations* tracked = nullptr;
    return tracked;
  }
  Context& context_;
  const Ops* plain_;
  Ops ops_;
  std::vector<std::pair<void*, int64_t>> sizes_;
};

// Fills device memory with 0xFF: NaN in every format, -1 as an integer.
class Poison {
 public:
  explicit Poison(Context& context) : context_(context), ones_(context, kBytes) {
    const std::vector<std::byte> host(kBytes, std::byte{0xFF});
    context.ops->copy_in(context, ones_.as<std::byte>(), host.data(), kBytes);
  }
  void fill(void* device, int64_t bytes) const {
    for (int64_t at = 0; at < bytes; at += kBytes) {
      context_.ops->copy(context_, static_cast<std::byte*>(device) + at, ones_.as<std::byte>(),
                         std::min(kBytes, bytes - at));
    }
  }

 private:
  static constexpr int64_t kBytes = 8 << 20;
  Context& context_;
  DeviceBuffer ones_;
};

// A runner that pads every step: its last slot is the padding's, and the first block of that slot.
class PaddedRunner {
 public:
  PaddedRunner(const Model& model, std::shared_ptr<Context> context, int sequences, int64_t length, int32_t rows,
               bool record)
      : record_(record), slot_(sequences), poison_(*context) {
    const TrackedAllocations tracked(*context);
    runner_ = std::make_unique<Runner>(model, context, sequences + 1, length, rows);
    const DeviceBuffer* kept[] = {&runner_->buffers.tables, &runner_->state.blocks, &runner_->state.rings,
                                  &runner_->state.pending, &runner_->state.history};
    for (const auto& [at, bytes] : tracked.sizes()) {
      const void* p = at;
      if (std::none_of(std::begin(kept), std::end(kept), [p](const DeviceBuffer* b) { return b->as<void>() == p; })) {
        scratch_.emplace_back(at, bytes);
      }
    }
  }
  ~PaddedRunner() {
    for (auto& [key, work] : recorded_) {
      context().ops->release_recorded(context(), work.forward);
      context().ops->release_recorded(context(), work.commit);
    }
  }
  PaddedRunner(const PaddedRunner&) = delete;
  PaddedRunner& operator=(const PaddedRunner&) = delete;

  Runner& plain() { return *runner_; }
  Context& context() { return *runner_->context; }
  size_t recorded() const { return recorded_.size(); }

  std::vector<float> run(const std::vector<StepSequence>& sequences, const StepShape& shape,
                         std::vector<int32_t> accepted, uint32_t seed) {
    Runner& r = *runner_;
    const Work* work = record_ ? &recorded_work(shape) : nullptr;
    for (const auto& [at, bytes] : scratch_) poison_.fill(at, bytes);
    const RingView ring = r.state.ring(0);
    poison_.fill(ring.base + slot_ * ring.slot_stride, ring.slot_stride);
    poison_.fill(r.state.pending_of(0) + slot_ * r.state.pending_stride(),
                 r.state.pending_stride() * static_cast<int64_t>(sizeof(float)));
    poison_.fill(r.state.blocks.as<std::byte>() + block() * r.state.cache.block_bytes, r.state.cache.block_bytes);

    const Step step = make_step(r.model, r.state, sequences);
    Step padded;
    pad_step(step, shape, slot_, block(), padded);
    const auto other = some_tokens(padded.rows(), seed);
    for (auto i = static_cast<size_t>(step.rows()); i < padded.token.size(); ++i) padded.token[i] = other[i];
    accepted.resize(padded.seq_slot.size(), 0);
    upload_step(context(), padded, r.buffers);
    if (work == nullptr) {
      run_forward(context(), r.model, r.state, padded, r.buffers);
    } else {
      context().ops->run_recorded(context(), work->forward);
    }
    std::vector<float> logits(static_cast<size_t>(step.samples()) * static_cast<size_t>(r.model.config().vocab_size));
    context().ops->copy_out(context(), logits.data(), r.buffers.logits.as<float>(),
                            static_cast<int64_t>(logits.size() * sizeof(float)));
    upload_accepted(context(), padded, r.buffers, accepted);
    if (work == nullptr) {
      run_commit(context(), r.model, r.state, padded, r.buffers);
    } else {
      context().ops->run_recorded(context(), work->commit);
    }
    return logits;
  }

 private:
  struct Work {
    void* forward = nullptr;
    void* commit = nullptr;
  };
  int32_t block() const { return runner_->blocks[static_cast<size_t>(slot_)][0]; }

  const Work& recorded_work(const StepShape& shape) {
    Work& work = recorded_[{shape.sequences, shape.rows, shape.max_blocks}];
    if (work.forward != nullptr) return work;
    Runner& r = *runner_;
    Step padded;
    pad_step({}, shape, slot_, block(), padded);
    const std::vector<int32_t> none(padded.seq_slot.size(), 0);
    forward(context(), r.model, r.state, padded, r.buffers);
    commit(context(), r.model, r.state, padded, r.buffers, none);
    const Ops& ops = *context().ops;
    work.forward = ops.record(context(), [&] { run_forward(context(), r.model, r.state, padded, r.buffers); });
    work.commit = ops.record(context(), [&] { run_commit(context(), r.model, r.state, padded, r.buffers); });
    return work;
  }

  bool record_;
  int32_t slot_;
  Poison poison_;
  std::unique_ptr<Runner> runner_;
  std::vector<std::pair<void*, int64_t>> scratch_;  // of the step: device memory and bytes
  std::map<std::vector<int32_t>, Work> recorded_;
};

// All state of the first `sequences` slots and of their blocks.
inline std::vector<std::byte> state_bytes(Runner& r, int sequences) {
  std::vector<std::byte> all;
  const auto take = [&](const void* device, int64_t bytes) {
    const size_t at = all.size();
    all.resize(at + static_cast<size_t>(bytes));
    r.context->ops->copy_out(*r.context, all.data() + at, device, bytes);
  };
  take(r.state.ring(0).base, sequences * r.state.ring(0).slot_stride);
  take(r.state.pending_of(0), sequences * r.state.pending_stride() * static_cast<int64_t>(sizeof(float)));
  take(r.state.history.as<int32_t>(), int64_t{sequences} * r.state.history_depth * 4);
  const int64_t blocks = static_cast<int64_t>(r.blocks[0].size()) * sequences;
  take(r.state.blocks.as<std::byte>(), blocks * r.state.cache.block_bytes);
  return all;
}

struct PaddedRun {
  int64_t steps = 0, rows = 0, padding = 0, shapes = 0;
  std::string wrong;  // the first difference; empty: none
};

// Prefill to random lengths, then `steps` steps of random mixes: some of the sequences in any order, one row each or
// blocks of up to `block`, of which some rows are accepted, at a random shape that takes them.
inline PaddedRun compare_padded(const Model& model, const std::shared_ptr<Context>& context, int sequences,
                                int64_t length, int32_t block, int steps, bool record, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  const int32_t most = std::max(sequences * block, static_cast<int32_t>(length));
  Runner plain(model, context, sequences, length, most);
  PaddedRunner padded(model, context, sequences, length, most, record);
  const auto shapes = padded_shapes(sequences, block, static_cast<int32_t>(blocks_for(length)));
  const auto vocab = model.config().vocab_size;
  PaddedRun run;
  std::vector<int32_t> starts;
  for (int32_t s = 0; s < sequences; ++s) {
    starts.push_back(1 + below(s % 2 == 0 ? 20 : length - block - 2));
    const auto prompt = some_tokens(starts.back(), seed + static_cast<uint32_t>(s));
    plain.run({{s, 0, prompt}});
    padded.plain().run({{s, 0, prompt}});
  }
  for (; run.steps < steps && run.wrong.empty(); ++run.steps) {
    std::vector<int32_t> order = iota_blocks(0, sequences);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(static_cast<size_t>(1 + below(sequences)));
    const bool verifies = below(2) == 0;
    std::vector<Runner::Part> parts;
    std::vector<std::vector<int32_t>> samples;
    std::vector<int32_t> accepted;
    for (const int32_t s : order) {
      const int32_t start = starts[static_cast<size_t>(s)];
      const auto left = static_cast<int32_t>(length) - start;
      if (left == 0) continue;
      const int32_t count = verifies ? 1 + below(std::min(block, left)) : 1;
      parts.push_back({s, start, some_tokens(count, static_cast<uint32_t>(random()))});
      samples.push_back(below(4) == 0 ? std::vector{count - 1} : iota_blocks(0, count));
      accepted.push_back(below(4) == 0 ? 0 : 1 + below(count));
    }
    if (parts.empty()) continue;
    std::vector<StepSequence> step;
    int32_t rows = 0;
    int64_t blocks = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& own = plain.blocks[static_cast<size_t>(parts[i].slot)];
      StepSequence sequence;
      sequence.slot = parts[i].slot;
      sequence.start = parts[i].start;
      sequence.tokens = parts[i].tokens;
      sequence.blocks = own;
      sequence.sample_tokens = samples[i];
      step.push_back(sequence);
      rows += static_cast<int32_t>(parts[i].tokens.size());
      blocks = std::max(blocks, blocks_for(parts[i].start + static_cast<int64_t>(parts[i].tokens.size())));
    }
    const Step whole = make_step(model, plain.state, step);
    std::vector<StepShape> fitting;
    std::copy_if(shapes.begin(), shapes.end(), std::back_inserter(fitting),
                 [&](const StepShape& shape) { return fits(whole, shape); });
    const StepShape shape = fitting[static_cast<size_t>(below(static_cast<int64_t>(fitting.size())))];

    forward(*context, model, plain.state, whole, plain.buffers);
    std::vector<float> expected(static_cast<size_t>(whole.samples()) * static_cast<size_t>(vocab));
    context->ops->copy_out(*context, expected.data(), plain.buffers.logits.as<float>(),
                           static_cast<int64_t>(expected.size() * sizeof(float)));
    commit(*context, model, plain.state, whole, plain.buffers, accepted);
    const auto found = padded.run(step, shape, accepted, static_cast<uint32_t>(random()));
    const int64_t row = first_difference(found, expected, vocab);
    if (row >= 0) {
      run.wrong = "step " + std::to_string(run.steps) + " of " + std::to_string(parts.size()) + " sequences and " +
                  std::to_string(rows) + " rows, at " + std::to_string(shape.sequences) + ", " +
                  std::to_string(shape.rows) + ", " + std::to_string(shape.max_blocks) + " blocks: sample " +
                  std::to_string(row) + " differs";
    }
    for (size_t i = 0; i < parts.size(); ++i) starts[static_cast<size_t>(parts[i].slot)] += accepted[i];
    run.rows += rows;
    run.padding += shape.rows - rows;
  }
  if (run.wrong.empty() && state_bytes(plain, sequences) != state_bytes(padded.plain(), sequences)) {
    run.wrong = "the sequences' state differs at the end";
  }
  run.shapes = static_cast<int64_t>(padded.recorded());
  return run;
}

}  // namespace mdi::testing
