// The draft layers (spec dspark.md): one call proposes dspark_block_size tokens for each of several sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/pass.h"

namespace mdi {

// Part of forward(): main_x of the step's tokens and the rows that commit() puts into the draft stages' rings.
// Nothing in a model without draft layers.
void draft_seed(const Pass& p);

struct DraftSequence {
  int32_t slot = 0;
  int32_t length = 0;  // committed tokens; the anchor is the token at this position, not yet run
  int32_t anchor = 0;
  int32_t replay_from = 0;  // of the sequence (model/step.h)
};

// What a draft call writes, sized for max_sequences.
struct DraftBuffers {
  DraftBuffers(Context& context, const Model& model, int32_t max_sequences);

  int32_t max_sequences;
  DeviceBuffer z, base;                    // [S * block, dim] bf16, [S * block, vocab] fp32
  DeviceBuffer token, logits, confidence;  // of one link of the chain: [S], [S, vocab], [S]
};

// Chooses the token after row `i` (0..block-1) of a sequence's block from its logits [vocab].
using DraftChoice = std::function<int32_t(size_t sequence, int i, std::span<const float> logits)>;

struct Drafts {
  std::vector<std::vector<int32_t>> tokens;    // [S][block]
  std::vector<std::vector<float>> confidence;  // [S][block], before the sigmoid; entry i judges token i
};

// Reads the rings and the embedding; keeps nothing in the state. `buffers` are the step's (free after its commit), with
// room for S * block rows.
Drafts draft(Context& context, const Model& model, const StatePools& state, std::span<const DraftSequence> sequences,
             StepBuffers& buffers, DraftBuffers& draft_buffers, const DraftChoice& choose);

}  // namespace mdi
