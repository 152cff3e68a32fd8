// Steps of fixed shapes whose work is recorded before the first request (kernels/ops.h, record): with CUDA, graphs for
// decoding and for verification. A step is padded to the smallest shape that takes it (model/padding.h); one that no
// shape takes (prefill, replay, images) is launched operation by operation. Both give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/forward.h"
#include "model/padding.h"

namespace mdi {

// 1, 2, 4, ... `sequences` sequences of one row, and of up to `block` rows where block > 1; none with more than
// max_rows rows. Each for contexts of 16, 128, 1024, ... and max_blocks blocks, because a launch is as large as the
// longest context that it may find. Smallest first: by rows, sequences, blocks.
std::vector<StepShape> recorded_shapes(int32_t sequences, int32_t block, int32_t max_rows, int32_t max_blocks);

class StepRecorder {
 public:
  // Runs each shape once, with nothing but padding, then records its forward and commit and runs those; waits for it.
  // Buffers have room for the shapes and a sequence more. The pools have a slot and a block, that of the padding, which
  // nobody else uses. A step's parts with more than `block` rows are left to forward().
  StepRecorder(Context& context, const Model& model, StatePools& state, StepBuffers& buffers,
               const std::vector<StepShape>& shapes, int32_t block, int32_t padding_slot, int32_t padding_block);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // As forward(), or false and nothing done where no shape takes the step. `uploaded` is called between the upload of
  // the step's arrays and its run.
  bool forward(const Step& step, const std::function<void()>& uploaded = {});
  // As commit() of the step that forward took last.
  void commit(std::span<const int32_t> accepted);

 private:
  struct Recorded {
    StepShape shape;
    void* forward = nullptr;
    void* commit = nullptr;
  };
  void record(Recorded& r);
  void release();
  const Recorded* find(const Step& step) const;

  Context& context_;
  const Model& model_;
  StatePools& state_;
  StepBuffers& buffers_;
  std::vector<Recorded> recorded_;
  int32_t block_, padding_slot_, padding_block_;
  const Recorded* taken_ = nullptr;
  int32_t sequences_ = 0;  // of the step taken
  Step padded_;
  std::vector<int32_t> accepted_;
};

}  // namespace mdi
