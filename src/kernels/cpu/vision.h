// Reference functions of the vision tower's stages (spec vision.md 2). Nothing here knows of images or threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace mdi::cpu {

// Rotates one head in place by half-split pairs: cos_sin [head_dim / 2][2].
void vision_rope(const float* cos_sin, int32_t head_dim, bf16* x);

// One head's keys and values as the tiles of the attention want them.
struct AttentionTiles {
  static constexpr int64_t kKeys = 64;  // keys a tile

  // Room for n keys; what lies between the head's width and the padded one, and behind the last key, is zero.
  AttentionTiles(int64_t n, int32_t head_dim);
  // Sets key i and its value.
  void set(int64_t i, const bf16* key, const bf16* value);

  int64_t n, width;  // width: head_dim, padded to whole vectors
  int32_t head_dim;
  std::vector<float> keys;    // [tiles, head_dim, kKeys]
  std::vector<float> values;  // [n, width]
};

// Online softmax of `count` queries over all keys, tile by tile in ascending order: memory does not grow with the
// product of queries and keys. q [count, head_dim] with row stride q_stride; o likewise. Only o is rounded.
void attend_all(const AttentionTiles& tiles, const bf16* q, int64_t q_stride, int64_t count, float scale, bf16* o,
                int64_t o_stride);

}  // namespace mdi::cpu
