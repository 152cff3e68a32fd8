// Pixels as the network sees them: 8-bit RGB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mdi {

struct RgbImage {
  int32_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3], row-major

  size_t row_bytes() const { return static_cast<size_t>(width) * 3; }
  const uint8_t* row(int64_t y) const { return pixels.data() + static_cast<size_t>(y) * row_bytes(); }
  uint8_t* row(int64_t y) { return pixels.data() + static_cast<size_t>(y) * row_bytes(); }
};

}  // namespace mdi
