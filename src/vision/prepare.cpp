#include "vision/prepare.h"

#include <array>

#include "core/error.h"
#include "vision/resize.h"

namespace mdi {

namespace {

// A configuration may ask for any number of tokens; a canvas beyond this is refused, not allocated.
constexpr int64_t kMostPreparedPixels = int64_t{1} << 26;

std::array<bf16, 256> pixel_values() {
  std::array<bf16, 256> values;
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16((static_cast<float>(i) / 255.0f - 0.5f) / 0.5f);
  return values;
}

}  // namespace

std::vector<bf16> make_patches(const RgbImage& prepared, int32_t patch) {
  static const std::array<bf16, 256> kValues = pixel_values();
  std::vector<bf16> patches;
  patches.reserve(prepared.pixels.size());
  for (int32_t top = 0; top < prepared.height; top += patch) {
    for (int32_t left = 0; left < prepared.width; left += patch) {
      for (int c = 0; c < 3; ++c) {
        for (int32_t y = top; y < top + patch; ++y) {
          const uint8_t* row = prepared.row(y);
          for (int32_t x = left; x < left + patch; ++x) patches.push_back(kValues[row[x * 3 + c]]);
        }
      }
    }
  }
  return patches;
}

PreparedImage prepare_image(const RgbImage& image, const ImageRules& rules) {
  PreparedImage prepared{.grid = plan_grid(image.width, image.height, rules), .patches = {}};
  const ImagePlacement at = place_image(image.width, image.height, prepared.grid);
  if (int64_t{prepared.grid.width} * prepared.grid.height > kMostPreparedPixels) {
    throw Error("image", "the model's limits ask for " + std::to_string(prepared.grid.width) + " x " +
                             std::to_string(prepared.grid.height) + " pixels, at most " +
                             std::to_string(kMostPreparedPixels) + " are supported");
  }
  prepared.patches = make_patches(fit_image(image, prepared.grid, at), rules.patch);
  return prepared;
}

PreparedImage prepare_image(std::span<const std::byte> file, const std::string& where, const ImageRules& rules,
                            const ImageLimits& limits) {
  const RgbImage image = decode_image(file, where, limits);
  try {
    return prepare_image(image, rules);
  } catch (const Error& e) {
    throw Error(where, e.what());
  }
}

std::vector<TokenType> image_span(const ImageGrid& grid) {
  std::vector<TokenType> types{TokenType::kStart};
  for (int32_t row = 0; row < grid.token_rows; ++row) {
    types.insert(types.end(), static_cast<size_t>(grid.token_cols), TokenType::kImage);
    types.push_back(TokenType::kNewline);
  }
  types.push_back(TokenType::kEnd);
  return types;
}

}  // namespace mdi
