// One layer of the network (spec model.md 5.2): engram, attention half, expert half. The backbone and the draft stages
// run through the same function; draft stage s is layer n_layers + s.
#pragma once

#include "model/pass.h"

namespace mdi {

// buffers.h and buffers.pre of the step's rows from their tokens, or from the rows of an image.
void embed(const Pass& p);

// Works on buffers.h and buffers.pre of the pass's rows.
void layer_forward(const Pass& p, int layer);

// The last KV source's layer in a step that drops rows (bounded replay, model.md 13): from pass `all` to pass `kept`.
// Its cache rows and its window rows are those of all rows; the stream, the carried mix, the selection, its candidates
// and main_hidden go on as those of the kept rows.
void last_source_forward(const Pass& all, const Pass& kept, int layer, ReplayForm form);

}  // namespace mdi
