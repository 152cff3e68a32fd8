// What every supported kind of file becomes.
#include "vision/decode.h"

#include <gtest/gtest.h>

#include "test_images.h"

namespace mdi {
namespace {

using namespace mdi::test;

constexpr int kWidth = 37, kHeight = 23;

RgbImage decode(const std::string& file) { return decode_image(bytes_of(file), "test image"); }

std::vector<uint8_t> grey_as_rgb(const std::vector<uint8_t>& grey) {
  std::vector<uint8_t> rgb;
  for (uint8_t v : grey) rgb.insert(rgb.end(), 3, v);
  return rgb;
}

TEST(DecodePng, EightBitFormats) {
  for (bool interlaced : {false, true}) {
    for (int channels : {3, 4}) {
      const auto samples = gradient(kWidth, kHeight, channels);
      const RgbImage image = decode(encode_png(samples, kWidth, kHeight, channels, {.interlaced = interlaced}));
      EXPECT_EQ(image.width, kWidth);
      EXPECT_EQ(image.height, kHeight);
      EXPECT_EQ(image.pixels, rgb_of(samples, channels)) << channels << interlaced;
    }
  }
  const auto grey = gradient(kWidth, kHeight, 1);
  EXPECT_EQ(decode(encode_png(grey, kWidth, kHeight, 1)).pixels, grey_as_rgb(grey));
}

TEST(DecodePng, AlphaIsDroppedNotBlended) {
  // Grey 200 at alpha 0, then at 255.
  EXPECT_EQ(decode(encode_png({200, 0, 200, 255}, 2, 1, 2)).pixels, std::vector<uint8_t>(6, 200));
}

TEST(DecodePng, FewBitGreyIsSpreadOverTheRange) {
  EXPECT_EQ(decode(encode_png({{0b10100000}}, 3, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 1})).pixels,
            grey_as_rgb({255, 0, 255}));
  EXPECT_EQ(decode(encode_png({{0b00011011}}, 4, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 2})).pixels,
            grey_as_rgb({0, 85, 170, 255}));
  EXPECT_EQ(decode(encode_png({{0x0F, 0x70}}, 3, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 4})).pixels,
            grey_as_rgb({0, 255, 119}));
}

TEST(DecodePng, SixteenBitsKeepTheUpperEight) {
  EXPECT_EQ(decode(encode_png({{0x12, 0xFF, 0xFE, 0x00}}, 2, {.colour = PNG_COLOR_TYPE_GRAY, .depth = 16})).pixels,
            grey_as_rgb({0x12, 0xFE}));
  EXPECT_EQ(decode(encode_png({{1, 200, 2, 100, 3, 250}}, 1, {.colour = PNG_COLOR_TYPE_RGB, .depth = 16})).pixels,
            (std::vector<uint8_t>{1, 2, 3}));
}

TEST(DecodePng, PaletteWithTransparency) {
  const PngOptions options{.colour = PNG_COLOR_TYPE_PALETTE,
                           .depth = 4,
                           .palette = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}},
                           .palette_alpha = {0, 128}};
  EXPECT_EQ(decode(encode_png({{0x01, 0x20}}, 3, options)).pixels,
            (std::vector<uint8_t>{10, 20, 30, 40, 50, 60, 70, 80, 90}));
}

TEST(DecodeJpeg, GreyColourAndProgressive) {
  for (bool progressive : {false, true}) {
    const auto colour = gradient(kWidth, kHeight, 3);
    const RgbImage image = decode(encode_jpeg(colour, kWidth, kHeight, 3, {.progressive = progressive}));
    EXPECT_EQ(image.width, kWidth);
    EXPECT_EQ(image.height, kHeight);
    EXPECT_LT(largest_difference(image.pixels, colour), 24);
    const auto grey = gradient(kWidth, kHeight, 1);
    EXPECT_LT(largest_difference(
                  decode(encode_jpeg(grey, kWidth, kHeight, 1, {.quality = 100, .progressive = progressive})).pixels,
                  grey_as_rgb(grey)),
              4);
  }
}

TEST(DecodeJpeg, CmykIsReadInverted) {
  // Cyan and black half used, stored inverted: (255 - 128, 255, 255, 255 - 128).
  std::vector<uint8_t> ink;
  for (int i = 0; i < 64; ++i) ink.insert(ink.end(), {127, 255, 255, 127});
  const RgbImage image = decode(encode_jpeg(ink, 8, 8, 4, {.quality = 100}));
  EXPECT_NEAR(image.pixels[0], 63, 3);
  EXPECT_NEAR(image.pixels[1], 127, 3);
  EXPECT_NEAR(image.pixels[2], 127, 3);
}

TEST(DecodeWebp, LosslessAndLossy) {
  for (int channels : {3, 4}) {
    auto samples = gradient(kWidth, kHeight, channels);
    // Lossless coding may change what alpha 0 hides.
    if (channels == 4) {
      for (size_t i = 3; i < samples.size(); i += 4) samples[i] = static_cast<uint8_t>(1 + samples[i] % 255);
    }
    EXPECT_EQ(decode(encode_webp(samples, kWidth, kHeight, channels)).pixels, rgb_of(samples, channels));
    const RgbImage lossy = decode(encode_webp(samples, kWidth, kHeight, channels, false));
    EXPECT_LT(largest_difference(lossy.pixels, rgb_of(samples, channels)), 40);
  }
}

TEST(DecodeWebp, FirstFrameOfAnAnimationOnBlack) {
  const std::vector<uint8_t> red{250, 1, 2}, green{1, 250, 2};
  const std::string file = animated_webp(
      4, 2, webp_frame(encode_webp(red, 1, 1, 3), 2, 0, 1, 1) + webp_frame(encode_webp(green, 1, 1, 3), 0, 0, 1, 1));
  std::vector<uint8_t> expected(24);
  std::copy(red.begin(), red.end(), expected.begin() + 6);
  EXPECT_EQ(decode(file).pixels, expected);
}

// A 2 x 3 picture of six greys, and how it must look after each orientation.
TEST(Orientation, AllEightInAllThreeFormats) {
  const std::vector<uint8_t> stored{10, 60, 110, 160, 210, 250};
  const std::vector<std::vector<uint8_t>> upright{{10, 60, 110, 160, 210, 250}, {60, 10, 160, 110, 250, 210},
                                                  {250, 210, 160, 110, 60, 10}, {210, 250, 110, 160, 10, 60},
                                                  {10, 110, 210, 60, 160, 250}, {210, 110, 10, 250, 160, 60},
                                                  {250, 160, 60, 210, 110, 10}, {60, 160, 250, 10, 110, 210}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (bool little : {true, false}) {
      const std::string exif = exif_block(orientation, little);
      const auto expected = grey_as_rgb(upright[static_cast<size_t>(orientation - 1)]);
      const std::string webp = encode_webp(grey_as_rgb(stored), 2, 3, 3);
      for (const RgbImage& image :
           {decode(encode_png(stored, 2, 3, 1, {.exif = exif})), decode(webp_with_exif(webp, 2, 3, exif)),
            decode(webp_with_exif(webp, 2, 3, std::string("Exif\0\0", 6) + exif))}) {
        EXPECT_EQ(image.width, orientation < 5 ? 2 : 3);
        EXPECT_EQ(image.pixels, expected) << orientation;
      }
      const RgbImage jpeg = decode(encode_jpeg(stored, 2, 3, 1, {.quality = 100, .exif = exif}));
      EXPECT_EQ(jpeg.height, orientation < 5 ? 3 : 2);
      EXPECT_LT(largest_difference(jpeg.pixels, expected), 8) << orientation;
    }
  }
}

TEST(Orientation, DamagedMetadataLeavesTheImageAsItIs) {
  const std::vector<uint8_t> stored{1, 2, 3, 4, 5, 6};
  const std::string whole = exif_block(6);
  for (size_t size = 0; size < 34; ++size) {
    const RgbImage image = decode(encode_png(stored, 2, 3, 1, {.exif = whole.substr(0, std::max<size_t>(size, 4))}));
    EXPECT_EQ(image.pixels, grey_as_rgb(stored)) << size;
  }
  for (int orientation : {0, 9, 65535}) {
    EXPECT_EQ(decode(encode_png(stored, 2, 3, 1, {.exif = exif_block(orientation)})).pixels, grey_as_rgb(stored));
  }
}

}  // namespace
}  // namespace mdi
