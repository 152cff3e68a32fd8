#include "vision/orientation.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace mdi {

namespace {

constexpr uint32_t kOrientationTag = 0x0112;
constexpr uint32_t kShort = 3;  // TIFF type of 16-bit integers

// A TIFF structure in either byte order. Reads past the end give 0.
struct Tiff {
  std::span<const std::byte> bytes;
  bool little = true;

  uint32_t get(size_t at, size_t size) const {
    if (at > bytes.size() || bytes.size() - at < size) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value = value << 8 | std::to_integer<uint32_t>(bytes[at + (little ? size - 1 - i : i)]);
    }
    return value;
  }
};

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  if (exif.size() >= 6 && std::memcmp(exif.data(), "Exif\0\0", 6) == 0) exif = exif.subspan(6);
  if (exif.size() < 8) return 1;
  const bool little = std::memcmp(exif.data(), "II*\0", 4) == 0;
  if (!little && std::memcmp(exif.data(), "MM\0*", 4) != 0) return 1;
  const Tiff tiff{.bytes = exif, .little = little};
  const size_t directory = tiff.get(4, 4);
  const uint32_t entries = tiff.get(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{i} * 12;
    if (entry + 12 > exif.size()) return 1;
    if (tiff.get(entry, 2) != kOrientationTag) continue;
    const uint32_t value = tiff.get(entry + 8, 2);
    const bool valid = tiff.get(entry + 2, 2) == kShort && value >= 1 && value <= 8;
    return valid ? static_cast<int>(value) : 1;
  }
  return 1;
}

RgbImage turn_upright(RgbImage image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  // The upright pixel (x, y) is the stored pixel (x, y), or (y, x) where rows became columns, counted from the far end
  // along the axes that are reversed.
  const bool transposed = orientation >= 5;
  const bool reverse_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool reverse_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  RgbImage upright{.width = transposed ? image.height : image.width,
                   .height = transposed ? image.width : image.height,
                   .pixels = std::vector<uint8_t>(image.pixels.size())};
  for (int32_t y = 0; y < upright.height; ++y) {
    uint8_t* to = upright.row(y);
    for (int32_t x = 0; x < upright.width; ++x, to += 3) {
      int32_t from_x = transposed ? y : x;
      int32_t from_y = transposed ? x : y;
      if (reverse_x) from_x = image.width - 1 - from_x;
      if (reverse_y) from_y = image.height - 1 - from_y;
      std::memcpy(to, image.row(from_y) + static_cast<size_t>(from_x) * 3, 3);
    }
  }
  return upright;
}

}  // namespace mdi
