// Files that are no images, lie about themselves, or end early: one error that says so, and nothing large allocated.
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "test_images.h"
#include "vision/decode.h"

namespace mdi {
namespace {

using namespace mdi::test;

std::string refusal(const std::string& file, const ImageLimits& limits = {}) {
  try {
    decode_image(bytes_of(file), "photo", limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "decoded";
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> one_of_each() {
  const auto samples = gradient(64, 48, 3);
  return {encode_png(samples, 64, 48, 3),
          encode_png(samples, 64, 48, 3, {.interlaced = true}),
          encode_jpeg(samples, 64, 48, 3),
          encode_jpeg(samples, 64, 48, 3, {.progressive = true}),
          encode_webp(samples, 64, 48, 3),
          encode_webp(samples, 64, 48, 3, false),
          webp_with_exif(encode_webp(samples, 64, 48, 3), 64, 48, exif_block(3)),
          animated_webp(64, 48, webp_frame(encode_webp(samples, 64, 48, 3), 0, 0, 64, 48))};
}

TEST(BadImage, NotAnImage) {
  EXPECT_EQ(refusal(""), "photo: expected a JPEG, PNG or WebP image, found no bytes");
  EXPECT_EQ(refusal("hello, world"),
            "photo: expected a JPEG, PNG or WebP image, found bytes that begin with 'hello, w'");
  EXPECT_EQ(refusal("GIF89a..."), "photo: expected a JPEG, PNG or WebP image, found a GIF file");
  EXPECT_TRUE(says(refusal(std::string("\0\0\0\x18"
                                       "ftypheic",
                                       12)),
                   "a HEIF file"));
  EXPECT_TRUE(says(refusal("RIFF\x10\x20\x30\x40WAVE"), "found bytes that begin with 'RIFF"));
  EXPECT_TRUE(says(refusal(std::string("\0\1\2", 3)), "found bytes that begin with '"));
}

TEST(BadImage, TruncatedAnywhere) {
  int kind = 0;
  for (const std::string& file : one_of_each()) {
    ASSERT_EQ(refusal(file), "decoded") << kind;
    // Every length near both ends, every seventh between.
    for (size_t size = 0; size < file.size(); size += size < 100 || size + 60 > file.size() ? 1 : 7) {
      // A still WebP is whole without the metadata that may follow it; everything else needs its last byte.
      if (kind == 6 && size + exif_block(3).size() + 8 >= file.size()) continue;
      EXPECT_NE(refusal(file.substr(0, size)), "decoded") << "kind " << kind << ", " << size << " of " << file.size();
    }
    ++kind;
  }
}

TEST(BadImage, DamageIsRefusedOrDecodedButNeverWorse) {
  std::mt19937 random(7);
  for (const std::string& file : one_of_each()) {
    for (int round = 0; round < 150; ++round) {
      std::string damaged = file;
      const auto bytes = 1 + random() % 4;
      for (uint32_t i = 0; i < bytes; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
      refusal(damaged);
    }
  }
}

void put32(std::string& file, size_t at, uint32_t value) {
  for (int i = 0; i < 4; ++i) file[at + static_cast<size_t>(i)] = static_cast<char>(value >> (8 * (3 - i)));
}

TEST(BadImage, HeadersThatClaimTooMuch) {
  const auto samples = gradient(16, 16, 3);
  std::string png = encode_png(samples, 16, 16, 3);
  for (uint32_t width : {0x7FFFFFFFu, 0xFFFFFFFFu, 70000u}) {
    put32(png, 16, width);
    EXPECT_TRUE(says(refusal(png), "too large: expected at most 65535 pixels a side")) << width;
  }
  put32(png, 16, 60000);
  put32(png, 20, 60000);
  EXPECT_EQ(refusal(png), "photo: too large: expected at most 67108864 pixels, found 60000 x 60000");
  put32(png, 16, 0);
  EXPECT_TRUE(says(refusal(png), "at least one pixel a side"));

  std::string jpeg = encode_jpeg(samples, 16, 16, 3);
  const size_t frame = jpeg.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xFE';
  EXPECT_EQ(refusal(jpeg), "photo: too large: expected at most 67108864 pixels, found 65278 x 65278");

  // 16383 x 16383 is the most that the format can say: two fields of 14 bits behind a signature byte.
  std::string webp = encode_webp(samples, 16, 16, 3);
  ASSERT_EQ(webp[20], '\x2F');
  const uint8_t sides[] = {0xFE, 0xBF, 0xFF, 0x0F};
  for (size_t i = 0; i < 4; ++i)
    webp[21 + i] = static_cast<char>(sides[i] | (static_cast<uint8_t>(webp[21 + i]) & (i == 3 ? 0xF0 : 0)));
  EXPECT_EQ(refusal(webp), "photo: too large: expected at most 67108864 pixels, found 16383 x 16383");
}

// A header of the right size over next to no data is told from the file's length before memory is taken.
TEST(BadImage, FewBytesThatClaimManyPixels) {
  std::string png = encode_png(gradient(16, 16, 3), 16, 16, 3);
  put32(png, 16, 8000);
  put32(png, 20, 8000);
  // The header's checksum is right again, so that its claim is believed.
  const auto crc = [](const std::string& bytes) {
    uint32_t c = ~0u;
    for (char b : bytes) {
      c ^= static_cast<uint8_t>(b);
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1u) != 0 ? 0xEDB88320u : 0u);
    }
    return ~c;
  };
  put32(png, 29, crc(png.substr(12, 17)));
  EXPECT_TRUE(says(refusal(png), "truncated"));

  std::string jpeg = encode_jpeg(gradient(16, 16, 3), 16, 16, 3);
  const size_t frame = jpeg.find("\xFF\xC0");
  jpeg[frame + 5] = jpeg[frame + 7] = 0x1F;
  EXPECT_TRUE(says(refusal(jpeg), "cannot be decoded as JPEG")) << refusal(jpeg);
}

// The library would take the memory that a chunk's length asks for before it looks for the bytes.
TEST(BadImage, MetadataThatClaimsGigabytes) {
  const std::string whole = encode_png(gradient(16, 16, 3), 16, 16, 3, {.exif = exif_block(6)});
  for (const char* chunk : {"eXIf", "IDAT"}) {
    std::string png = whole;
    const size_t name = png.find(chunk);
    ASSERT_NE(name, std::string::npos);
    put32(png, name - 4, 0x7FFFFFFF);
    EXPECT_TRUE(says(refusal(png), "truncated")) << refusal(png);
  }
}

TEST(BadImage, LimitsOfTheCaller) {
  const std::string file = encode_png(gradient(64, 48, 3), 64, 48, 3);
  EXPECT_EQ(refusal(file, {.max_bytes = 100}),
            "photo: too large: expected an image file of at most 100 bytes, found " + std::to_string(file.size()));
  EXPECT_TRUE(says(refusal(file, {.max_pixels = 64 * 48 - 1}), "at most 3071 pixels, found 64 x 48"));
  EXPECT_EQ(refusal(file, {.max_pixels = 64 * 48}), "decoded");
  EXPECT_TRUE(says(refusal(file, {.max_side = 63}), "at most 63 pixels a side"));
}

TEST(BadImage, EndlessScansOfAProgressiveJpeg) {
  std::string file = encode_jpeg(gradient(64, 48, 1), 64, 48, 1, {.progressive = true});
  // The last scan, repeated: from its start-of-scan marker to the end of the image.
  const size_t scan = file.rfind("\xFF\xDA");
  const std::string last = file.substr(scan, file.size() - 2 - scan);
  file.resize(file.size() - 2);
  for (int i = 0; i < 200; ++i) file += last;
  EXPECT_NE(refusal(file + "\xFF\xD9"), "decoded");
}

TEST(BadImage, FrameOutsideTheCanvas) {
  const std::string frame = encode_webp(gradient(8, 8, 3), 8, 8, 3);
  EXPECT_NE(refusal(animated_webp(8, 8, webp_frame(frame, 4, 4, 8, 8))), "decoded");
  EXPECT_NE(refusal(animated_webp(8, 8, webp_frame(frame, 2, 0, 4, 4))), "decoded");
}

}  // namespace
}  // namespace mdi
