#include "model/vision_weights.h"

#include <string>

namespace mdi {

namespace {

const bf16* vector(Checkpoint& checkpoint, const std::string& name) { return checkpoint.take(name).as<bf16>(); }

LinearWeight linear(Checkpoint& checkpoint, const std::string& name) {
  const TensorView t = checkpoint.take(name + ".weight");
  return {.kind = WeightKind::kBF16, .data = t.data, .scale = nullptr, .n = t.shape[0], .k = t.shape[1]};
}

VisionBlockWeights take_block(Checkpoint& checkpoint, const std::string& name) {
  VisionBlockWeights block;
  block.norm1 = vector(checkpoint, name + ".norm1.weight");
  block.norm2 = vector(checkpoint, name + ".norm2.weight");
  block.wqkv = linear(checkpoint, name + ".attn.wqkv");
  block.wqkv_bias = vector(checkpoint, name + ".attn.wqkv.bias");
  block.wo = linear(checkpoint, name + ".attn.wo");
  block.wo_bias = vector(checkpoint, name + ".attn.wo.bias");
  block.w1 = linear(checkpoint, name + ".mlp.w1");
  block.w2 = linear(checkpoint, name + ".mlp.w2");
  return block;
}

}  // namespace

VisionWeights take_vision(Checkpoint& checkpoint) {
  VisionWeights w;
  w.patch_embed = linear(checkpoint, "vision.patch_embed.proj");
  w.patch_bias = vector(checkpoint, "vision.patch_embed.proj.bias");
  for (int i = 0; i < checkpoint.config().vision.n_layers; ++i) {
    w.blocks.push_back(take_block(checkpoint, "vision.blocks." + std::to_string(i)));
  }
  w.norm = vector(checkpoint, "vision.norm.weight");
  w.aligner_w1 = linear(checkpoint, "aligner.w1");
  w.aligner_b1 = vector(checkpoint, "aligner.w1.bias");
  w.aligner_w2 = linear(checkpoint, "aligner.w2");
  w.aligner_b2 = vector(checkpoint, "aligner.w2.bias");
  w.image_start = vector(checkpoint, "image_start");
  w.image_newline = vector(checkpoint, "image_newline");
  w.image_end = vector(checkpoint, "image_end");
  return w;
}

}  // namespace mdi
