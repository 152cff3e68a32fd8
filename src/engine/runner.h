// The model with its pools and buffers, all made at start: runs the parts of a step and fetches what they gave. It
// knows slots and blocks by id only; who has which is the engine's and the cache room's business.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_table.h"
#include "engine/stage_clock.h"
#include "engine/step_recorder.h"
#include "kernels/sample.h"
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
  bool record = true;    // steps of fixed shapes, where the backend keeps what is recorded
  bool measure = false;  // steps may be measured by stage
  bool warm = true;      // false: nothing is run or recorded, for whoever counts what is allocated
};

// What of a step's tokens is chosen on the device, and which of its own tokens are.
struct StepChoice {
  std::vector<SampleRow> rows;  // [samples], wanted or left to the host
  // New tokens of the step that the step before has chosen: token `place` of the step is that of its sample `source`.
  std::vector<int32_t> place, source;
  void clear() {
    rows.clear();
    place.clear();
    source.clear();
  }
};

// How many steps are recorded (step_recorder.h) where `record` is set and the backend records.
size_t recorded_count(const Model& model, const RunnerSizes& sizes);

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

  // Whether the device runs what it was asked for while the caller goes on.
  bool runs_ahead() const { return context_.ops->make_mark != nullptr; }

  // Starts a step and the choice of its tokens. With CUDA it runs while the caller goes on; nothing of it is permanent
  // before commit(). Returns a ticket for chosen(). The step before may still run, but its commit has been asked for,
  // and the choice of the one before that has been waited for. A step that is measured is launched operation by
  // operation: same bits, and where steps are recorded it takes somewhat longer than one that is.
  int32_t start(std::span<const StepSequence> sequences, ReplayForm form, const StepChoice& choice = {},
                bool measured = false);
  // Waits for a started step, not for what came after it. [samples] what the device chose (kernels/sample.h); valid
  // until the second start() from then on.
  std::span<const int32_t> chosen(int32_t ticket);
  // Waits for the step started last. Its logits [samples, vocab], in the order of the sampled rows, of those rows whose
  // flag is not 0 (all, without flags); the others have any values. Valid until the next fetch().
  std::span<const float> fetch(std::span<const uint8_t> rows = {});
  // Of the step started last; accepted[s]: new tokens that sequence s of the step keeps.
  void commit(std::span<const int32_t> accepted);

  // Whether a step can be measured: what the one before took has been asked for.
  bool can_measure() const { return clock_ != nullptr && !measured_done_; }
  // Seconds a stage, forward and commit, of the step that was measured last, once: when the device is done with it.
  // None before, and for a step of more stages than there are marks. Does not wait.
  std::optional<PerStage<double>> take_stages();

  // Proposals for sequences whose state is committed. Not between start() and commit().
  Drafts propose(std::span<const DraftSequence> sequences, const DraftChoice& choose);

 private:
  void warm();
  void choose(const StepChoice& choice);
  void place_tokens(const StepChoice& choice);

  // What a step and the one before it have apart, by turns.
  struct Turn {
    std::byte* choice = nullptr;  // host memory: SampleRow [max_samples], then indices [3, slots]
    int32_t* chosen = nullptr;    // host memory [max_samples]
    DeviceBuffer device_chosen;   // [max_samples]
    void* mark = nullptr;         // behind the copy to `chosen`
    int32_t samples = 0;
  };

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
  std::unique_ptr<StageClock> clock_;
  bool measured_ = false;       // step_ is
  bool measured_done_ = false;  // a step was, and its commit has been asked for
  std::array<Turn, 2> turns_;
  int32_t turn_ = 0;         // of the step started last
  DeviceBuffer choice_;      // as Turn::choice
  float* logits_ = nullptr;  // [max_samples, vocab], host memory that the device reaches without staging
};

}  // namespace mdi
