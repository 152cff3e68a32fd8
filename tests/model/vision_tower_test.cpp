// The vision tower against the reference's stored outputs, and what it must refuse.
#include "model/vision_tower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "../vision/golden_vision.h"
#include "checkpoint/engram_token_map.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "kernels/cpu/backend.h"
#include "tiny_model.h"

namespace mdi {
namespace {

using namespace mdi::test;

const Model& vision_model() {
  static const Model model = [] {
    const auto dir = testing::golden_dir() / "tiny-vision";
    Checkpoint checkpoint = Checkpoint::open(dir);
    auto map = load_engram_token_map(dir / "engram_token_map.json", checkpoint.config());
    return load_model(std::move(checkpoint), std::move(map));
  }();
  return model;
}

PreparedImage golden_image(int i) {
  const std::string name = "image" + std::to_string(i) + ".png";
  const MappedFile file(kGoldenVision + name);
  return prepare_image(std::as_bytes(std::span(file.data(), file.size())), name,
                       image_rules(vision_model().config().vision));
}

double relative(const std::vector<bf16>& found, const std::vector<uint16_t>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double e = to_float(bf16{expected[i]});
    difference += std::pow(to_float(found[i]) - e, 2);
    size += e * e;
  }
  return std::sqrt(difference / size);
}

TEST(VisionTower, StoredOutputs) {
  const auto context = make_cpu_context(2);
  VisionBuffers buffers(*context, vision_model());
  for (int i = 0; i < 5; ++i) {
    std::map<std::string, std::vector<bf16>> seen;
    context->tap = [&seen](std::string_view name, int, const TensorView& t) {
      seen[std::string(name)].assign(t.as<bf16>(), t.as<bf16>() + t.elements());
    };
    vision_forward(*context, vision_model(), golden_image(i), buffers);
    for (const auto& [name, limit] : {std::pair{"patch_embed", 2e-3}, {"vit_out", 1e-2}, {"aligner_out", 1e-2}}) {
      const auto expected = golden_tensor<uint16_t>("image" + std::to_string(i) + "." + name);
      EXPECT_LT(relative(seen[name], expected), limit) << name << " of image " << i;
    }
  }
}

TEST(VisionTower, RowsOfASpan) {
  const auto context = make_cpu_context(2);
  const Model& model = vision_model();
  VisionBuffers buffers(*context, model);
  const PreparedImage image = golden_image(1);
  const auto rows = image_rows(*context, model, image, buffers);
  const auto stored = golden_tensor<uint16_t>("image1.aligner_out");
  const auto dim = static_cast<size_t>(model.config().dim);
  ASSERT_EQ(rows.size(), static_cast<size_t>(image.grid.tokens()) * dim);
  size_t feature = 0;
  for (size_t i = 0; const TokenType type : image_span(image.grid)) {
    const bf16* row = rows.data() + dim * i++;
    const bf16* learned = type == TokenType::kStart     ? model.vision.image_start
                          : type == TokenType::kNewline ? model.vision.image_newline
                                                        : model.vision.image_end;
    for (size_t d = 0; d < dim; ++d) {
      if (type != TokenType::kImage) {
        ASSERT_EQ(row[d].bits, learned[d].bits);
      } else {
        ASSERT_NEAR(to_float(row[d]), to_float(bf16{stored[feature * dim + d]}), 0.05);
      }
    }
    if (type == TokenType::kImage) ++feature;
  }
  EXPECT_EQ(feature * dim, stored.size());
}

TEST(VisionTower, AnImageDoesNotDependOnTheOneBefore) {
  const auto context = make_cpu_context(2);
  VisionBuffers buffers(*context, vision_model());
  const auto first = image_rows(*context, vision_model(), golden_image(3), buffers);
  image_rows(*context, vision_model(), golden_image(4), buffers);
  const auto again = image_rows(*context, vision_model(), golden_image(3), buffers);
  ASSERT_EQ(first.size(), again.size());
  for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(first[i].bits, again[i].bits);
}

TEST(VisionTower, WhatItRefuses) {
  const auto context = make_cpu_context(1);
  EXPECT_THROW(VisionBuffers(*context, testing::tiny_model()), Error);  // a text-only model

  VisionBuffers buffers(*context, vision_model());
  const RgbImage large{.width = 700, .height = 700, .pixels = std::vector<uint8_t>(700 * 700 * 3)};
  const PreparedImage other = prepare_image(large, {.max_tokens = 1024, .min_pixels = 4900});
  EXPECT_THROW(vision_forward(*context, vision_model(), other, buffers), Error);
  PreparedImage torn = golden_image(3);
  torn.patches.pop_back();
  EXPECT_THROW(vision_forward(*context, vision_model(), torn, buffers), Error);
}

}  // namespace
}  // namespace mdi
