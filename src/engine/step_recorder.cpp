#include "engine/step_recorder.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "core/error.h"

namespace mdi {

std::vector<StepShape> recorded_shapes(int32_t sequences, int32_t block, int32_t max_rows, int32_t max_blocks) {
  std::vector<StepShape> shapes;
  const auto add = [&](int32_t s, int32_t rows, int32_t blocks) {
    // The padding's own rows need a block table too.
    const auto needed = static_cast<int32_t>(blocks_for(rows));
    const StepShape shape{.sequences = s, .rows = rows, .max_blocks = std::max(blocks, needed)};
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  };
  constexpr int32_t kShortest = 16, kStep = 8;
  const int32_t most = std::min(sequences, max_rows);
  for (int32_t s = 1; s <= most; s = s < most ? std::min(2 * s, most) : s + 1) {
    for (const int32_t rows : {s, static_cast<int32_t>(std::min<int64_t>(int64_t{s} * block, max_rows))}) {
      for (int64_t blocks = kShortest; blocks < max_blocks; blocks *= kStep) add(s, rows, static_cast<int32_t>(blocks));
      add(s, rows, max_blocks);
    }
  }
  std::sort(shapes.begin(), shapes.end(), [](const StepShape& a, const StepShape& b) {
    return std::tie(a.rows, a.sequences, a.max_blocks) < std::tie(b.rows, b.sequences, b.max_blocks);
  });
  return shapes;
}

StepRecorder::StepRecorder(Context& context, const Model& model, StatePools& state, StepBuffers& buffers,
                           const std::vector<StepShape>& shapes, int32_t block, int32_t padding_slot,
                           int32_t padding_block)
    : context_(context),
      model_(model),
      state_(state),
      buffers_(buffers),
      block_(block),
      padding_slot_(padding_slot),
      padding_block_(padding_block) {
  for (const StepShape& shape : shapes) recorded_.push_back({.shape = shape});
  try {
    for (Recorded& r : recorded_) record(r);
    // What waits for all of it.
    float any = 0;
    context.ops->copy_out(context, &any, buffers.logits.as<float>(), sizeof any);
  } catch (...) {
    release();
    throw;
  }
}

StepRecorder::~StepRecorder() { release(); }

void StepRecorder::release() {
  for (Recorded& r : recorded_) {
    for (void* work : {r.forward, r.commit}) {
      if (work != nullptr) context_.ops->release_recorded(context_, work);
    }
  }
  recorded_.clear();
}

void StepRecorder::record(Recorded& r) {
  pad_step({}, r.shape, padding_slot_, padding_block_, padded_);
  accepted_.assign(padded_.seq_slot.size(), 0);
  upload_step(context_, padded_, buffers_);
  upload_accepted(context_, padded_, buffers_, accepted_);
  const auto forward_work = [this] { run_forward(context_, model_, state_, padded_, buffers_); };
  const auto commit_work = [this] { run_commit(context_, model_, state_, padded_, buffers_); };
  forward_work();
  commit_work();
  r.forward = context_.ops->record(context_, forward_work);
  r.commit = context_.ops->record(context_, commit_work);
  // A first run may still set something up.
  context_.ops->run_recorded(context_, r.forward);
  context_.ops->run_recorded(context_, r.commit);
}

const StepRecorder::Recorded* StepRecorder::find(const Step& step) const {
  if (context_.tap) return nullptr;  // what it shows is copied out in between
  if (std::any_of(step.seq_count.begin(), step.seq_count.end(), [this](int32_t n) { return n > block_; })) {
    return nullptr;
  }
  const auto at =
      std::find_if(recorded_.begin(), recorded_.end(), [&step](const Recorded& r) { return fits(step, r.shape); });
  return at == recorded_.end() ? nullptr : &*at;
}

bool StepRecorder::forward(const Step& step, const std::function<void()>& uploaded) {
  taken_ = find(step);
  if (taken_ == nullptr) return false;
  sequences_ = step.sequences();
  pad_step(step, taken_->shape, padding_slot_, padding_block_, padded_);
  upload_step(context_, padded_, buffers_);
  if (uploaded) uploaded();
  context_.ops->run_recorded(context_, taken_->forward);
  return true;
}

void StepRecorder::commit(std::span<const int32_t> accepted) {
  if (taken_ == nullptr || accepted.size() != static_cast<size_t>(sequences_)) {
    throw Error("commit", "expected a count for each of the step's " + std::to_string(sequences_) +
                              " sequences, found " + std::to_string(accepted.size()));
  }
  accepted_.assign(accepted.begin(), accepted.end());
  accepted_.resize(padded_.seq_slot.size(), 0);
  upload_accepted(context_, padded_, buffers_, accepted_);
  context_.ops->run_recorded(context_, taken_->commit);
}

}  // namespace mdi
