#include "engine/runner.h"

#include <algorithm>

namespace mdi {

namespace {

int32_t block_rows(const Model& model, const RunnerSizes& sizes) {
  return 1 + (sizes.drafts ? model.config().dspark_block_size : 0);
}

std::vector<StepShape> shapes_of(const Model& model, const RunnerSizes& sizes) {
  return recorded_shapes(sizes.slots, block_rows(model, sizes), std::min(sizes.max_rows, sizes.max_samples),
                         static_cast<int32_t>(blocks_for(sizes.max_length)));
}

// Of a step's block tables: what sequences need and, where steps are recorded, what padding needs.
int32_t max_blocks(const Model& model, const RunnerSizes& sizes, bool records) {
  auto blocks = static_cast<int32_t>(blocks_for(sizes.max_length));
  if (!records) return blocks;
  for (const StepShape& shape : shapes_of(model, sizes)) blocks = std::max(blocks, shape.max_blocks);
  return std::max(blocks, static_cast<int32_t>(blocks_for(sizes.max_rows)));
}

}  // namespace

Runner::Runner(Context& context, const Model& model, const RunnerSizes& sizes)
    : context_(context),
      model_(model),
      sizes_(sizes),
      records_(sizes.record && context.ops->record != nullptr),
      // One slot, block and sequence more for the padding, of the ids behind all others.
      state_(make_state(context, model, sizes.slots + (records_ ? 1 : 0), sizes.blocks + (records_ ? 1 : 0))),
      buffers_(context, model, sizes.max_rows, sizes.max_samples, sizes.slots + (records_ ? 1 : 0),
               max_blocks(model, sizes, records_)),
      snapshots_(context, state_, sizes.snapshots) {
  const int32_t block = model.config().dspark_block_size;
  // A draft call runs and samples whole blocks in the step's buffers.
  const int32_t drafting =
      sizes.drafts && block > 0 ? std::min({sizes.slots, sizes.max_rows / block, sizes.max_samples / block}) : 0;
  if (drafting > 0) draft_buffers_ = std::make_unique<DraftBuffers>(context, model, drafting);
  const int64_t values = int64_t{sizes.max_samples} * model.config().vocab_size;
  logits_ = static_cast<float*>(context.ops->allocate_host(context, values * static_cast<int64_t>(sizeof(float))));
  if (records_) warm();
}

// Everything that a step may still have to set up happens now: the largest step, then one of each shape.
void Runner::warm() {
  Step largest;
  const StepShape all{.sequences = 1, .rows = sizes_.max_rows, .max_blocks = buffers_.max_blocks};
  pad_step({}, all, sizes_.slots, sizes_.blocks, largest);
  largest.sample_rows.resize(static_cast<size_t>(std::min(sizes_.max_rows, sizes_.max_samples)));
  forward(context_, model_, state_, largest, buffers_);
  recorder_ = std::make_unique<StepRecorder>(context_, model_, state_, buffers_, shapes_of(model_, sizes_),
                                             block_rows(model_, sizes_), sizes_.slots, sizes_.blocks);
}

Runner::~Runner() { context_.ops->release_host(context_, logits_); }

void Runner::copy_blocks(std::span<const CopyBlock> copies) {
  for (const CopyBlock& copy : copies) copy_block(context_, state_, copy.from, copy.to);
}

void Runner::start(std::span<const StepSequence> sequences, ReplayForm form) {
  step_ = make_step(model_, state_, sequences, form);
  recorded_ = recorder_ && recorder_->forward(step_);
  if (recorded_) {
    ++recorded_steps_;
  } else {
    forward(context_, model_, state_, step_, buffers_);
  }
}

std::span<const float> Runner::fetch() {
  const size_t values = static_cast<size_t>(step_.samples()) * static_cast<size_t>(model_.config().vocab_size);
  // One value at least: the copy is what waits for the step.
  context_.ops->copy_out(context_, logits_, buffers_.logits.as<float>(),
                         static_cast<int64_t>(std::max<size_t>(values, 1) * sizeof(float)));
  return {logits_, values};
}

void Runner::commit(std::span<const int32_t> accepted) {
  if (recorded_) {
    recorder_->commit(accepted);
  } else {
    mdi::commit(context_, model_, state_, step_, buffers_, accepted);
  }
}

Drafts Runner::propose(std::span<const DraftSequence> sequences, const DraftChoice& choose) {
  return draft(context_, model_, state_, sequences, buffers_, *draft_buffers_, choose);
}

}  // namespace mdi
