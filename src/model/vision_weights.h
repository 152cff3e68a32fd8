// The vision tower's weights as views (spec checkpoint.md 1, vision.md 2 to 4).
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"

namespace mdi {

struct VisionBlockWeights {
  const bf16* norm1 = nullptr;  // [dim]
  const bf16* norm2 = nullptr;
  LinearWeight wqkv, wo;  // [3 * dim, dim], [dim, dim]
  const bf16* wqkv_bias = nullptr;
  const bf16* wo_bias = nullptr;
  LinearWeight w1, w2;  // gate rows, then up rows [2 * inter, dim]; [dim, inter]; no bias
};

struct VisionWeights {
  LinearWeight patch_embed;  // [dim, 3 * patch * patch]
  const bf16* patch_bias = nullptr;
  std::vector<VisionBlockWeights> blocks;
  const bf16* norm = nullptr;
  LinearWeight aligner_w1, aligner_w2;  // [text dim, dim * downsample^2], [text dim, text dim]
  const bf16* aligner_b1 = nullptr;
  const bf16* aligner_b2 = nullptr;
  // The rows of a span that are not features, [text dim].
  const bf16* image_start = nullptr;
  const bf16* image_newline = nullptr;
  const bf16* image_end = nullptr;
};

// Takes every tensor of the vision tower, its aligner and the delimiters. The configuration has a vision tower.
VisionWeights take_vision(Checkpoint& checkpoint);

}  // namespace mdi
