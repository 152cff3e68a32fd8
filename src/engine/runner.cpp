#include "engine/runner.h"

#include <algorithm>

namespace mdi {

Runner::Runner(Context& context, const Model& model, const RunnerSizes& sizes)
    : context_(context),
      model_(model),
      sizes_(sizes),
      state_(make_state(context, model, sizes.slots, sizes.blocks)),
      buffers_(context, model, sizes.max_rows, sizes.max_samples, sizes.slots,
               static_cast<int32_t>(blocks_for(sizes.max_length))),
      snapshots_(context, state_, sizes.snapshots) {
  const int32_t block = model.config().dspark_block_size;
  // A draft call runs and samples whole blocks in the step's buffers.
  const int32_t drafting =
      sizes.drafts && block > 0 ? std::min({sizes.slots, sizes.max_rows / block, sizes.max_samples / block}) : 0;
  if (drafting > 0) draft_buffers_ = std::make_unique<DraftBuffers>(context, model, drafting);
  const int64_t values = int64_t{sizes.max_samples} * model.config().vocab_size;
  logits_ = static_cast<float*>(context.ops->allocate_host(context, values * static_cast<int64_t>(sizeof(float))));
}

Runner::~Runner() { context_.ops->release_host(context_, logits_); }

void Runner::copy_blocks(std::span<const CopyBlock> copies) {
  for (const CopyBlock& copy : copies) copy_block(context_, state_, copy.from, copy.to);
}

void Runner::start(std::span<const StepSequence> sequences, ReplayForm form) {
  step_ = make_step(model_, state_, sequences, form);
  forward(context_, model_, state_, step_, buffers_);
}

std::span<const float> Runner::fetch() {
  const size_t values = static_cast<size_t>(step_.samples()) * static_cast<size_t>(model_.config().vocab_size);
  // One value at least: the copy is what waits for the step.
  context_.ops->copy_out(context_, logits_, buffers_.logits.as<float>(),
                         static_cast<int64_t>(std::max<size_t>(values, 1) * sizeof(float)));
  return {logits_, values};
}

void Runner::commit(std::span<const int32_t> accepted) {
  mdi::commit(context_, model_, state_, step_, buffers_, accepted);
}

Drafts Runner::propose(std::span<const DraftSequence> sequences, const DraftChoice& choose) {
  return draft(context_, model_, state_, sequences, buffers_, *draft_buffers_, choose);
}

}  // namespace mdi
