// One decoder a format, behind decode_image. Each checks the size that the header claims, then decodes all or throws
// mdi::Error(where, ...).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "vision/decode.h"
#include "vision/image.h"

namespace mdi {

struct DecodedImage {
  RgbImage image;       // as stored
  int orientation = 1;  // EXIF: how to turn it upright
};

DecodedImage decode_jpeg(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits);
DecodedImage decode_png(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits);
DecodedImage decode_webp(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits);

void check_image_size(int64_t width, int64_t height, const std::string& where, const ImageLimits& limits);

}  // namespace mdi
