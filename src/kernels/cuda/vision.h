// What the files of the vision tower's stages share.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// Attention of one image after the rotation: turned [rows, 2, heads, head_dim] holds q and k, rotated and rounded to
// bf16; the values are read from qkv.
struct VisionAttentionParams {
  int32_t rows = 0, heads = 0, head_dim = 0;
  float scale = 0;  // head_dim^-0.5
  const bf16* turned = nullptr;
  const bf16* qkv = nullptr;  // [rows, 3, heads, head_dim]
  bf16* o = nullptr;          // [rows, heads, head_dim]
};

// Heads of 64 on the tensor cores: by head_dim alone. qkv 16-byte, o 4-byte aligned; throws mdi::Error for another qkv.
bool fits_vision_wgmma(const VisionAttentionParams& params);
void vision_attention_wgmma(CudaContext& context, const VisionAttentionParams& params);
// Any even head_dim up to 256.
void vision_attention_plain(CudaContext& context, const VisionAttentionParams& params);

}  // namespace mdi::cuda
