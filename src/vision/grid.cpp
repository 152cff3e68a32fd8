#include "vision/grid.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

[[noreturn]] void refuse(int64_t width, int64_t height, const std::string& why) {
  throw Error("image", std::to_string(width) + " x " + std::to_string(height) + " pixels: " + why);
}

// Sides that are too long for 32 bits cannot come from rules that a model has.
constexpr double kLongestSide = 1 << 30;

}  // namespace

// All in double, in the order of the specification: the floors depend on each rounding.
ImageGrid plan_grid(int64_t width, int64_t height, const ImageRules& rules) {
  if (width < 1 || height < 1) refuse(width, height, "expected at least one pixel a side");
  const double patch = rules.patch;
  const double cell = rules.patch * rules.downsample;
  auto w = static_cast<double>(width);
  auto h = static_cast<double>(height);
  if (rules.max_wh_ratio > 0) w = std::min(w, h * rules.max_wh_ratio);
  if (w * h < static_cast<double>(rules.min_pixels)) {
    const double enlarge = std::sqrt(static_cast<double>(rules.min_pixels) / (w * h));
    w = std::trunc(w * enlarge);
    h = std::trunc(h * enlarge);
  }
  double prepared_w = std::ceil(w / patch) * patch;
  double prepared_h = std::ceil(h / patch) * patch;
  const auto cost = [&] {
    return std::ceil(prepared_h / patch / rules.downsample) * (std::ceil(prepared_w / patch / rules.downsample) + 1) +
           2;
  };

  if (cost() > rules.max_tokens) {
    // The largest grid of this shape: rows * (columns + 1) is what the delimiters leave.
    const double cells = rules.max_tokens - 2;
    const double shape = h / w;
    const double most_columns = std::sqrt(cells / shape + 0.25) - 0.5;
    const double most_rows = most_columns * shape;
    if (most_columns < 1) {
      prepared_h = std::floor(cells / 2) * cell;
      prepared_w = cell;
    } else if (most_rows < 1) {
      prepared_h = cell;
      prepared_w = (cells - 1) * cell;
    } else {
      const double shrink = std::min(std::floor(most_columns) * cell / w, std::floor(most_rows) * cell / h);
      prepared_h = std::floor(h * shrink / patch) * patch;
      prepared_w = std::floor(w * shrink / patch) * patch;
    }
  }
  if (!(prepared_w >= patch && prepared_h >= patch && cost() <= rules.max_tokens)) {
    refuse(width, height, "no grid of this shape stays within " + std::to_string(rules.max_tokens) + " tokens");
  }
  if (prepared_w > kLongestSide || prepared_h > kLongestSide) refuse(width, height, "too long on the network's grid");

  ImageGrid grid;
  grid.width = static_cast<int32_t>(prepared_w);
  grid.height = static_cast<int32_t>(prepared_h);
  grid.patch_rows = grid.height / rules.patch;
  grid.patch_cols = grid.width / rules.patch;
  grid.token_rows = (grid.patch_rows + rules.downsample - 1) / rules.downsample;
  grid.token_cols = (grid.patch_cols + rules.downsample - 1) / rules.downsample;
  return grid;
}

// Halves round to even, in the ratio and in the offset.
ImagePlacement place_image(int64_t width, int64_t height, const ImageGrid& grid) {
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  ImagePlacement at{.width = grid.width, .height = grid.height, .x = 0, .y = 0};
  const double target = static_cast<double>(grid.width) / grid.height;
  if (w / h > target) at.height = static_cast<int32_t>(std::nearbyint(h / w * grid.width));
  if (w / h < target) at.width = static_cast<int32_t>(std::nearbyint(w / h * grid.height));
  if (at.width < 1 || at.height < 1) {
    refuse(width, height,
           "too narrow: resized to fit " + std::to_string(grid.width) + " x " + std::to_string(grid.height) +
               ", a side has no pixel left");
  }
  at.x = static_cast<int32_t>(std::nearbyint((grid.width - at.width) * 0.5));
  at.y = static_cast<int32_t>(std::nearbyint((grid.height - at.height) * 0.5));
  return at;
}

}  // namespace mdi
