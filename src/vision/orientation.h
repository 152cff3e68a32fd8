// EXIF orientation: finding it, and turning an image upright by it.
#pragma once

#include <cstddef>
#include <span>

#include "vision/image.h"

namespace mdi {

// The orientation (1..8) in an EXIF block, which may begin with "Exif\0\0". 1 where there is none or the block is
// damaged: metadata that cannot be read does not make an image unusable.
int exif_orientation(std::span<const std::byte> exif);

// 1 upright, 2 mirrored, 3 upside down, 4 flipped, 5 transposed, 6 to be turned right, 7 transversed, 8 to be turned
// left.
RgbImage turn_upright(RgbImage image, int orientation);

}  // namespace mdi
