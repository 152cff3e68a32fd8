// JPEG, PNG and WebP files to RGB pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "vision/image.h"

namespace mdi {

// Checked against the file's own header before anything of that size is allocated or decoded.
struct ImageLimits {
  size_t max_bytes = size_t{64} << 20;
  int64_t max_pixels = int64_t{1} << 26;  // 67 million: 200 MB of RGB
  int32_t max_side = 65535;               // what JPEG can hold
};

// Decodes a whole file and turns it upright by its EXIF orientation. Grey, palette and CMYK become RGB, 16 bits become
// the upper 8, alpha is dropped (not blended); of an animation the first frame is taken.
//
// Throws mdi::Error(where, ...) for a file that is empty, too large, none of the three formats, damaged or truncated. A
// file that ends early is never shown in part.
RgbImage decode_image(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits = {});

}  // namespace mdi
