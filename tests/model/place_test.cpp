// Placing weights: a device that is the CPU itself, so that the copies can be run.
#include "model/place.h"

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace mdi {
namespace {

Model load_tiny() {
  const auto dir = testing::golden_dir() / "tiny-text";
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
