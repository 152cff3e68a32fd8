// The model with its pools and buffers, all made at start: runs the parts of a step and fetches what they gave. It
// knows slots and blocks by id only; who has which is the engine's and the cache room's business.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/block_table.h"
#include "engine/step_recorder.h"
#include "model/draft.h"
#include "model/forward.h"
#include "model/state_copy.h"

namespace mdi {

struct RunnerSizes {
  int32_t slots = 0, blocks = 0, snapshots = 0;
  int32_t max_rows = 0;     // of a step
  int32_t max_samples = 0;  // rows of a step through the head
  int64_t max_length = 0;   // of a sequence
  bool drafts = false;
  bool record = true;  // steps of fixed shapes, where the backend keeps what is recorded
};

class Runner {
 public:
  // Allocates everything that serving takes, and records steps (step_recorder.h), which also shows whether the largest
  // step finds its workspace. `context` and `model` outlive it.
  Runner(Context& context, const Model& model, const RunnerSizes& sizes);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const RunnerSizes& sizes() const { return sizes_; }
  const Model& model() const { return model_; }
  // Sequences that one draft call takes; 0: no drafting.
  int32_t max_drafting() const { return draft_buffers_ ? draft_buffers_->max_sequences : 0; }

  // Steps since the start that ran what was recorded.
  int64_t recorded_steps() const { return recorded_steps_; }

  // Bookkeeping's orders, in the order of the context's work (model/state_copy.h).
  void copy_blocks(std::span<const CopyBlock> copies);
  void clear(int32_t slot) { clear_slot(context_, state_, slot); }
  void copy(int32_t from_slot, int32_t to_slot) { copy_slot(context_, state_, from_slot, to_slot); }
  void save(int32_t slot, int32_t snapshot) { save_slot(context_, state_, slot, snapshots_, snapshot); }
  void restore(int32_t slot, int32_t snapshot) { restore_slot(context_, state_, slot, snapshots_, snapshot); }

  // Starts a step. With CUDA it runs while the caller goes on; nothing of it is permanent before commit().
  void start(std::span<const StepSequence> sequences, ReplayForm form);
  // Waits for the step. Its logits [samples, vocab], in the order of the sampled rows; valid until the next fetch().
  std::span<const float> fetch();
  // accepted[s]: new tokens that sequence s of the step keeps.
  void commit(std::span<const int32_t> accepted);

  // Proposals for sequences whose state is committed. Not between start() and commit().
  Drafts propose(std::span<const DraftSequence> sequences, const DraftChoice& choose);

 private:
  void warm();

  Context& context_;
  const Model& model_;
  RunnerSizes sizes_;
  bool records_;
  StatePools state_;
  StepBuffers buffers_;
  SnapshotBuffers snapshots_;
  std::unique_ptr<DraftBuffers> draft_buffers_;
  std::unique_ptr<StepRecorder> recorder_;
  Step step_;
  bool recorded_ = false;  // step_ ran what was recorded
  int64_t recorded_steps_ = 0;
  float* logits_ = nullptr;  // [max_samples, vocab], host memory that the device reaches without staging
};

}  // namespace mdi
