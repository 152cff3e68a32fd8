// Bicubic resizing with antialiasing and padding, bit for bit as the network was trained with (spec vision.md 1).
#pragma once

#include "vision/grid.h"
#include "vision/image.h"

namespace mdi {

// Cubic convolution with a = -0.5, widened by the scale where the image shrinks. Two passes, rows then columns, each
// with 8-bit results and weights of 22 fraction bits; a pass whose size does not change is left out.
RgbImage resize_bicubic(const RgbImage& image, int32_t width, int32_t height);

// The image resized to `at` on a canvas of the grid's size, grey (127, 127, 127) elsewhere.
RgbImage fit_image(const RgbImage& image, const ImageGrid& grid, const ImagePlacement& at);

}  // namespace mdi
