#include "vision/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mdi {

namespace {

constexpr int kFractionBits = 22;  // of the weights: 8 bits of pixel, two of headroom for the negative lobes
constexpr double kSupport = 2;     // of the cubic, in source pixels
constexpr uint8_t kPadding = 127;

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// The weights of each output pixel along one axis: `count` source pixels from `first`.
struct Taps {
  struct Window {
    int32_t first = 0, count = 0;
  };
  std::vector<Window> windows;
  std::vector<int32_t> weights;  // [outputs, stride]
  size_t stride = 0;
};

Taps make_taps(int32_t from, int32_t to) {
  const double scale = static_cast<double>(from) / to;
  const double widening = std::max(scale, 1.0);
  const double support = kSupport * widening;
  Taps taps;
  taps.stride = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  taps.windows.resize(static_cast<size_t>(to));
  taps.weights.resize(static_cast<size_t>(to) * taps.stride);
  std::vector<double> exact(taps.stride);
  for (int32_t out = 0; out < to; ++out) {
    const double centre = (out + 0.5) * scale;
    const int32_t first = std::max(static_cast<int32_t>(std::floor(centre - support + 0.5)), 0);
    const int32_t end = std::min(static_cast<int32_t>(std::floor(centre + support + 0.5)), from);
    double sum = 0;
    for (int32_t i = first; i < end; ++i) {
      const double weight = cubic((i - centre + 0.5) * (1.0 / widening));
      exact[static_cast<size_t>(i - first)] = weight;
      sum += weight;
    }
    int32_t* weights = taps.weights.data() + static_cast<size_t>(out) * taps.stride;
    for (int32_t i = 0; i < end - first; ++i) {
      const double weight =
          (sum != 0 ? exact[static_cast<size_t>(i)] / sum : exact[static_cast<size_t>(i)]) * (1 << kFractionBits);
      weights[i] = static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    taps.windows[static_cast<size_t>(out)] = {first, end - first};
  }
  return taps;
}

uint8_t to_pixel(int32_t sum) {
  const int32_t rounded = (sum + (1 << (kFractionBits - 1))) >> kFractionBits;
  return static_cast<uint8_t>(std::clamp(rounded, 0, 255));
}

RgbImage resize_rows(const RgbImage& image, int32_t width) {
  const Taps taps = make_taps(image.width, width);
  RgbImage out{.width = width, .height = image.height, .pixels = {}};
  out.pixels.resize(out.row_bytes() * static_cast<size_t>(out.height));
  for (int32_t y = 0; y < out.height; ++y) {
    uint8_t* to = out.row(y);
    for (int32_t x = 0; x < width; ++x, to += 3) {
      const Taps::Window window = taps.windows[static_cast<size_t>(x)];
      const int32_t* weights = taps.weights.data() + static_cast<size_t>(x) * taps.stride;
      const uint8_t* from = image.row(y) + static_cast<size_t>(window.first) * 3;
      int32_t sum[3] = {};
      for (int32_t i = 0; i < window.count; ++i, from += 3) {
        for (int c = 0; c < 3; ++c) sum[c] += from[c] * weights[i];
      }
      for (int c = 0; c < 3; ++c) to[c] = to_pixel(sum[c]);
    }
  }
  return out;
}

RgbImage resize_columns(const RgbImage& image, int32_t height) {
  const Taps taps = make_taps(image.height, height);
  RgbImage out{.width = image.width, .height = height, .pixels = {}};
  out.pixels.resize(out.row_bytes() * static_cast<size_t>(height));
  std::vector<int32_t> sums(out.row_bytes());
  for (int32_t y = 0; y < height; ++y) {
    const Taps::Window window = taps.windows[static_cast<size_t>(y)];
    const int32_t* weights = taps.weights.data() + static_cast<size_t>(y) * taps.stride;
    std::fill(sums.begin(), sums.end(), 0);
    for (int32_t i = 0; i < window.count; ++i) {
      const uint8_t* from = image.row(window.first + i);
      for (size_t x = 0; x < sums.size(); ++x) sums[x] += from[x] * weights[i];
    }
    std::transform(sums.begin(), sums.end(), out.row(y), to_pixel);
  }
  return out;
}

}  // namespace

RgbImage resize_bicubic(const RgbImage& image, int32_t width, int32_t height) {
  if (image.width == width) return image.height == height ? image : resize_columns(image, height);
  RgbImage rows = resize_rows(image, width);
  return rows.height == height ? rows : resize_columns(rows, height);
}

RgbImage fit_image(const RgbImage& image, const ImageGrid& grid, const ImagePlacement& at) {
  RgbImage resized = resize_bicubic(image, at.width, at.height);
  if (at.width == grid.width && at.height == grid.height) return resized;
  RgbImage canvas{.width = grid.width, .height = grid.height, .pixels = {}};
  canvas.pixels.assign(canvas.row_bytes() * static_cast<size_t>(canvas.height), kPadding);
  for (int32_t y = 0; y < at.height; ++y) {
    std::memcpy(canvas.row(at.y + y) + static_cast<size_t>(at.x) * 3, resized.row(y), resized.row_bytes());
  }
  return canvas;
}

}  // namespace mdi
