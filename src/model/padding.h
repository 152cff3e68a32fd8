// Steps of a few fixed shapes, for work that is recorded once and run again (kernels/ops.h, record): a step is made as
// large as its shape by a sequence of its own, which stands behind the real ones.
//
// The padding sequence is a sequence like any other, of a slot and a block that belong to nobody: nothing needs to know
// of it, and by the rule that a row's result does not depend on other rows the real rows get the bits that they get
// without it. It has as many rows as are missing, from position 0 on, and none of them is ever accepted. All it writes
// is its rows of the step's buffers and rows of that one block; it reads what it has written itself, and its slot's
// history, which has to be that of an empty sequence (clear_slot) or of any other.
#pragma once

#include "model/step.h"

namespace mdi {

struct StepShape {
  int32_t sequences = 0;   // real ones; a padded step has one more
  int32_t rows = 0;        // and as many samples
  int32_t max_blocks = 0;  // of a block table: at least blocks_for(rows), for the padding's own
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// Whether pad_step takes the step: no larger than the shape, all of its rows kept by the upper layers, no image rows.
bool fits(const Step& step, const StepShape& shape);

// out: the step with padding up to the shape. Real rows, sequences and samples come first, in their order. Places of
// sequences that are left over get no rows, places of samples that are left over the last row.
void pad_step(const Step& step, const StepShape& shape, int32_t slot, int32_t block, Step& out);

}  // namespace mdi
