// Placing weights: a device that is the CPU itself, so that the copies can be run.
#include "model/place.h"

#include <gtest/gtest.h>

#include "model/vision_tower.h"
#include "tiny_model.h"

namespace mdi {
namespace {

Model load_tiny(const char* name = "tiny-text") {
  const auto dir = testing::golden_dir() / name;
  Checkpoint checkpoint = Checkpoint::open(dir);
  std::vector<int32_t> map = load_engram_token_map(dir / "engram_token_map.json", checkpoint.config());
  return load_model(std::move(checkpoint), std::move(map));
}

TEST(Place, ThePlacedModelGivesTheSameBits) {
  const Model mapped = load_tiny();
  const auto context = make_cpu_context(1);
  Model placed = load_tiny();
  const DeviceBuffer memory = place_weights(*context, placed);
  const auto* begin = memory.as<std::byte>();
  const std::byte* end = begin + placed_bytes(placed);
  for (const void* p : {static_cast<const void*>(placed.weights.embed), placed.weights.head.data,
                        static_cast<const void*>(placed.weights.layers[1].engram.table),
                        static_cast<const void*>(placed.weights.draft.markov_embed)}) {
    EXPECT_TRUE(p >= begin && p < end);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, reinterpret_cast<uintptr_t>(begin) % 256);
  }
  const std::vector<int32_t> tokens = testing::some_tokens(40, 7);
  testing::Runner on_file(mapped, 1, 64, 64), on_copy(placed, 1, 64, 64);
  const auto expected = on_file.run({{0, 0, tokens}});
  EXPECT_EQ(testing::first_difference(on_copy.run({{0, 0, tokens}}), expected, mapped.config().vocab_size), -1);
}

TEST(Place, ThePlacedTowerGivesTheSameBits) {
  const Model mapped = load_tiny("tiny-vision");
  const auto context = make_cpu_context(1);
  Model placed = load_tiny("tiny-vision");
  const DeviceBuffer memory = place_weights(*context, placed);
  const auto* begin = memory.as<std::byte>();
  const std::byte* end = begin + placed_bytes(placed);
  const VisionWeights& v = placed.vision;
  std::vector<const void*> all{v.patch_embed.data, v.patch_bias, v.norm,        v.aligner_w1.data, v.aligner_b1,
                               v.aligner_w2.data,  v.aligner_b2, v.image_start, v.image_newline,   v.image_end};
  for (const VisionBlockWeights& b : v.blocks) {
    for (const LinearWeight* w : {&b.wqkv, &b.wo, &b.w1, &b.w2}) all.push_back(w->data);
    for (const bf16* p : {b.norm1, b.norm2, b.wqkv_bias, b.wo_bias}) all.push_back(p);
  }
  for (const void* p : all) EXPECT_TRUE(p >= begin && p < end);
  const RgbImage picture{.width = 150, .height = 90, .pixels = std::vector<uint8_t>(150 * 90 * 3, 77)};
  const PreparedImage image = prepare_image(picture, image_rules(placed.config().vision));
  VisionBuffers buffers(*context, placed);
  const auto expected = image_rows(*context, mapped, image, buffers);
  const auto found = image_rows(*context, placed, image, buffers);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].bits, expected[i].bits);
}

TEST(Place, ExpertsOfALayerLieBehindOneAnother) {
  const auto context = make_cpu_context(1);
  Model model = load_tiny();
  const DeviceBuffer memory = place_weights(*context, model);
  for (const LayerWeights& layer : model.weights.layers) {
    const std::vector<ExpertWeights>& experts = layer.ffn.experts;
    for (LinearWeight ExpertWeights::*which : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2}) {
      for (size_t e = 1; e < experts.size(); ++e) {
        const LinearWeight &w = experts[e].*which, &before = experts[e - 1].*which;
        EXPECT_EQ(static_cast<const std::byte*>(w.data) - static_cast<const std::byte*>(before.data), w.n * w.k / 2);
        EXPECT_EQ(w.scale - before.scale, w.n * w.k / 32);
      }
    }
  }
}

}  // namespace
}  // namespace mdi
