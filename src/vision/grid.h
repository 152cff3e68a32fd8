// Where an image lands on the network's grid of patches and tokens (spec vision.md 1), from its size alone.
#pragma once

#include <cstdint>

namespace mdi {

// The limits of a model's configuration.
struct ImageRules {
  int32_t patch = 14;       // pixels a side of a patch
  int32_t downsample = 3;   // patches a side of a token
  int32_t max_tokens = 0;   // of a whole span, delimiters included
  int64_t min_pixels = 0;   // smaller images are planned as if enlarged to this area
  double max_wh_ratio = 0;  // width is planned as at most this times the height; 0: no cap
};

struct ImageGrid {
  int32_t width = 0, height = 0;           // prepared pixels, multiples of the patch size
  int32_t patch_rows = 0, patch_cols = 0;  // height / patch, width / patch
  int32_t token_rows = 0, token_cols = 0;  // patches / downsample, rounded up
  int64_t patches() const { return int64_t{patch_rows} * patch_cols; }
  int64_t features() const { return int64_t{token_rows} * token_cols; }
  int64_t tokens() const { return int64_t{token_rows} * (token_cols + 1) + 2; }  // length of the span
};

// Steps 1 to 4 for an image of width x height pixels. Throws mdi::Error("image", ...) for a side below 1 and where no
// grid stays within max_tokens.
ImageGrid plan_grid(int64_t width, int64_t height, const ImageRules& rules);

// The resized image inside the prepared one: its size and its top left corner (step 5).
struct ImagePlacement {
  int32_t width = 0, height = 0, x = 0, y = 0;
};

// Throws mdi::Error("image", ...) where the image is so narrow that a side would become 0 pixels.
ImagePlacement place_image(int64_t width, int64_t height, const ImageGrid& grid);

}  // namespace mdi
