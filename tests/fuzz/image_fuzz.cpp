// Any bytes as an image file: refused in one line, or pixels of the size that the header claims, and a place for them
// on the network's grid.
#include <cstddef>
#include <span>

#include "fuzz.h"
#include "vision/decode.h"
#include "vision/grid.h"

namespace mdi {
namespace {

// Small enough that a run goes over many files in a second.
constexpr ImageLimits kLimits{.max_bytes = size_t{1} << 20, .max_pixels = int64_t{1} << 20, .max_side = 1 << 14};

void check(std::span<const std::byte> file) {
  const RgbImage image = decode_image(file, "image", kLimits);
  const auto pixels = int64_t{image.width} * image.height;
  fuzz::require(image.width > 0 && image.height > 0 && pixels <= kLimits.max_pixels, "the size is within the limits");
  fuzz::require(static_cast<int64_t>(image.pixels.size()) == 3 * pixels, "there are as many pixels as the size says");
  for (const int32_t tokens : {20, 1024}) {
    const ImageRules rules{.max_tokens = tokens, .min_pixels = 4900};
    const ImageGrid grid = plan_grid(image.width, image.height, rules);
    fuzz::require(grid.tokens() <= tokens, "the span stays within its limit");
    const ImagePlacement at = place_image(image.width, image.height, grid);
    fuzz::require(at.x >= 0 && at.y >= 0 && at.x + at.width <= grid.width && at.y + at.height <= grid.height,
                  "the image lies on its canvas");
  }
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mdi::fuzz::allow_error([&] { mdi::check(std::as_bytes(std::span(data, size))); });
  return 0;
}
