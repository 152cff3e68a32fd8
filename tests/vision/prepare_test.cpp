// From a file to patches, against the reference's own pixels, and the plan of the grid.
#include "vision/prepare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/mapped_file.h"
#include "golden_vision.h"
#include "test_images.h"
#include "vision/resize.h"

namespace mdi {
namespace {

using namespace mdi::test;

constexpr ImageRules kTinyRules{.max_tokens = 20, .min_pixels = 4900};
constexpr ImageRules kReleasedRules{.max_tokens = 1024, .min_pixels = 295936};

TEST(Prepare, GoldenPixelsAndPatches) {
  for (int i = 0; i < 5; ++i) {
    const std::string name = "image" + std::to_string(i);
    const MappedFile file(kGoldenVision + name + ".png");
    const RgbImage image = decode_image(std::as_bytes(std::span(file.data(), file.size())), name);
    EXPECT_EQ(image.pixels, golden_tensor<uint8_t>(name + ".rgb")) << name;

    const ImageGrid grid = plan_grid(image.width, image.height, kTinyRules);
    EXPECT_EQ((std::vector<int32_t>{grid.patch_rows, grid.patch_cols, grid.token_rows, grid.token_cols}),
              golden_tensor<int32_t>(name + ".grid"))
        << name;
    const RgbImage prepared = fit_image(image, grid, place_image(image.width, image.height, grid));
    EXPECT_EQ(prepared.pixels, golden_tensor<uint8_t>(name + ".prepared_rgb")) << name;
    if (i > 1) continue;  // the patches of the others are not stored
    const auto stored = golden_tensor<uint16_t>(name + ".patches");
    const auto patches = make_patches(prepared, 14);
    ASSERT_EQ(patches.size(), stored.size());
    for (size_t k = 0; k < stored.size(); ++k) ASSERT_EQ(patches[k].bits, stored[k]) << name << " " << k;
  }
}

TEST(Grid, StoredSizes) {
  const MappedFile file(std::string(MDI_SOURCE_DIR) + "/tests/data/golden/ops/image_grid.json");
  const auto json = nlohmann::json::parse(file.text());
  for (const char* set : {"released", "tiny"}) {
    const ImageRules rules{.max_tokens = json[set]["max_image_tokens"], .min_pixels = json[set]["min_pixels"]};
    for (const std::vector<int32_t> row : json[set]["rows"]) {
      const ImageGrid grid = plan_grid(row[0], row[1], rules);
      EXPECT_EQ((std::vector<int32_t>{grid.token_rows, grid.token_cols, grid.height, grid.width}),
                std::vector<int32_t>(row.begin() + 2, row.end()))
          << set << " " << row[0] << "x" << row[1];
      EXPECT_LE(grid.tokens(), rules.max_tokens);
    }
  }
}

// Spec test-vectors.md, image planning.
TEST(Grid, PublishedExamples) {
  struct Example {
    int width, height, prepared_w, prepared_h, patch_cols, patch_rows, token_cols, token_rows, tokens;
  };
  for (const Example& e : {Example{448, 336, 630, 476, 45, 34, 15, 12, 194},
                           {640, 480, 644, 490, 46, 35, 16, 12, 206},
                           {1600, 1200, 1512, 1134, 108, 81, 36, 27, 1001},
                           {1920, 1080, 1708, 966, 122, 69, 41, 23, 968},
                           {100, 2000, 126, 2436, 9, 174, 3, 58, 234},
                           {5000, 60, 5012, 70, 358, 5, 120, 2, 244},
                           {30, 9000, 42, 9422, 3, 673, 1, 225, 452}}) {
    const ImageGrid grid = plan_grid(e.width, e.height, kReleasedRules);
    EXPECT_EQ(grid.width, e.prepared_w);
    EXPECT_EQ(grid.height, e.prepared_h);
    EXPECT_EQ(grid.patch_cols, e.patch_cols);
    EXPECT_EQ(grid.patch_rows, e.patch_rows);
    EXPECT_EQ(grid.token_cols, e.token_cols);
    EXPECT_EQ(grid.token_rows, e.token_rows);
    EXPECT_EQ(grid.tokens(), e.tokens);
  }
}

TEST(Grid, EverySizeStaysWithinTheLimits) {
  for (int max_tokens : {4, 5, 7, 20, 64, 1024}) {
    const ImageRules rules{.max_tokens = max_tokens, .min_pixels = 4900};
    for (int64_t w : {1, 13, 14, 15, 42, 43, 100, 999, 4000, 65535}) {
      for (int64_t h : {1, 13, 14, 15, 42, 43, 100, 999, 4000, 65535}) {
        const ImageGrid grid = plan_grid(w, h, rules);
        EXPECT_LE(grid.tokens(), max_tokens);
        EXPECT_GE(grid.features(), 1);
        EXPECT_EQ(grid.patch_rows * 14, grid.height);
      }
    }
  }
}

TEST(Grid, AspectCap) {
  const ImageRules rules{.max_tokens = 1024, .min_pixels = 4900, .max_wh_ratio = 2};
  const ImageGrid grid = plan_grid(1000, 100, rules);
  EXPECT_EQ(grid.width, 210);  // planned as 200 x 100
  EXPECT_EQ(grid.height, 112);
  EXPECT_EQ(place_image(1000, 100, grid).height, 21);
}

TEST(Grid, WhatHasNoGridIsRefused) {
  EXPECT_THROW(plan_grid(0, 10, kTinyRules), Error);
  EXPECT_THROW(plan_grid(10, -1, kTinyRules), Error);
  EXPECT_THROW(plan_grid(10, 10, {.max_tokens = 3, .min_pixels = 4900}), Error);
  EXPECT_THROW(plan_grid(10, 10, {.max_tokens = 0, .min_pixels = 4900}), Error);
  // A line of one pixel by 65,535 has a grid, but no pixel of it would be left on it.
  const ImageGrid grid = plan_grid(1, 65535, kReleasedRules);
  EXPECT_THROW(place_image(1, 65535, grid), Error);
}

TEST(Prepare, ErrorsNameTheImage) {
  const std::string line = encode_png(std::vector<uint8_t>(50000), 1, 50000, 1);
  try {
    prepare_image(bytes_of(line), "line.png", kReleasedRules);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).rfind("line.png: image: 1 x 50000 pixels: too narrow", 0), 0u) << e.what();
  }
}

TEST(Prepare, AConfigurationThatAsksForTooMuch) {
  const RgbImage dot{.width = 1, .height = 1, .pixels = {1, 2, 3}};
  const ImageRules rules{.patch = 64, .downsample = 8, .max_tokens = 1 << 20, .min_pixels = 1 << 30};
  EXPECT_THROW(prepare_image(dot, rules), Error);
}

TEST(Resize, SameSizeIsTheSameImage) {
  const RgbImage image{.width = 5, .height = 4, .pixels = gradient(5, 4, 3)};
  EXPECT_EQ(resize_bicubic(image, 5, 4).pixels, image.pixels);
}

TEST(Resize, FlatStaysFlat) {
  for (const auto& [w, h] : {std::pair{1, 1}, {3, 50}, {97, 2}, {200, 200}}) {
    const RgbImage flat{.width = 31, .height = 17, .pixels = std::vector<uint8_t>(31 * 17 * 3, 201)};
    EXPECT_EQ(resize_bicubic(flat, w, h).pixels, std::vector<uint8_t>(static_cast<size_t>(w) * h * 3, 201));
  }
}

TEST(Resize, PaddingIsCentredAndGrey) {
  const RgbImage image{.width = 2, .height = 1, .pixels = std::vector<uint8_t>(6, 9)};
  const ImageGrid grid{.width = 4, .height = 5};
  const RgbImage fitted = fit_image(image, grid, place_image(2, 1, grid));
  // 4 x 2 in the middle of 5 rows: an offset of 1.5 rounds to the even 2.
  std::vector<uint8_t> expected(4 * 5 * 3, 127);
  std::fill(expected.begin() + 2 * 12, expected.begin() + 4 * 12, uint8_t{9});
  EXPECT_EQ(fitted.pixels, expected);
}

TEST(Span, TypesInReadingOrder) {
  ImageGrid grid;
  grid.token_rows = 2;
  grid.token_cols = 3;
  using enum TokenType;
  EXPECT_EQ(image_span(grid),
            (std::vector<TokenType>{kStart, kImage, kImage, kImage, kNewline, kImage, kImage, kImage, kNewline, kEnd}));
  EXPECT_EQ(image_span(grid).size(), static_cast<size_t>(grid.tokens()));
}

}  // namespace
}  // namespace mdi
