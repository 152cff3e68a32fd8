#include "model/padding.h"

namespace mdi {

bool fits(const Step& step, const StepShape& shape) {
  return step.sequences() <= shape.sequences && step.rows() <= shape.rows && step.samples() <= shape.rows &&
         step.max_blocks <= shape.max_blocks && step.kept_rows() == step.rows() && step.image_row.empty();
}

void pad_step(const Step& step, const StepShape& shape, int32_t slot, int32_t block, Step& out) {
  const auto rows = static_cast<size_t>(shape.rows);
  const auto sequences = static_cast<size_t>(shape.sequences) + 1;
  const int32_t missing = shape.rows - step.rows();
  out = step;
  out.token.resize(rows, 0);
  out.dead.resize(rows, 0);
  out.seq_of_row.resize(rows, step.sequences());
  for (int32_t i = 0; i < missing; ++i) out.position.push_back(i);
  out.sample_rows.resize(rows, shape.rows - 1);

  out.seq_slot.resize(sequences, slot);
  out.seq_start.resize(sequences, 0);
  out.seq_floor.resize(sequences, 0);
  out.seq_row.push_back(step.rows());
  out.seq_count.push_back(missing);
  out.seq_kept.push_back(missing);
  out.seq_row.resize(sequences, shape.rows);
  out.seq_count.resize(sequences, 0);
  out.seq_kept.resize(sequences, 0);

  const auto width = static_cast<size_t>(shape.max_blocks), used = static_cast<size_t>(step.max_blocks);
  out.max_blocks = shape.max_blocks;
  out.block_table.assign(sequences * width, block);
  for (size_t s = 0; s < step.seq_slot.size(); ++s) {
    for (size_t i = 0; i < used; ++i) out.block_table[s * width + i] = step.block_table[s * used + i];
  }
}

}  // namespace mdi
