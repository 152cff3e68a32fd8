// One layer of the network (spec model.md 5.2): engram, attention half, expert half. The backbone and the draft stages
// run through the same function; draft stage s is layer n_layers + s.
#pragma once

#include "model/pass.h"

namespace mdi {

// buffers.h and buffers.pre of the step's rows from their tokens, or from the rows of an image.
void embed(const Pass& p);

// Works on buffers.h and buffers.pre of the step's rows.
void layer_forward(const Pass& p, int layer);

}  // namespace mdi
