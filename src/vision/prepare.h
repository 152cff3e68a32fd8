// An image file to the vision tower's input (spec vision.md 1), and the span of tokens that stands for it (4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "vision/decode.h"
#include "vision/grid.h"
#include "vision/image.h"

namespace mdi {

struct PreparedImage {
  ImageGrid grid;
  std::vector<bf16> patches;  // [patch_rows * patch_cols, 3 * patch * patch]
};

// [patches in reading order, channel, row, column] of bf16((pixel / 255 - 0.5) / 0.5). Sides are multiples of `patch`.
std::vector<bf16> make_patches(const RgbImage& prepared, int32_t patch);

PreparedImage prepare_image(const RgbImage& image, const ImageRules& rules);
// Decodes first. `where` names the image in errors.
PreparedImage prepare_image(std::span<const std::byte> file, const std::string& where, const ImageRules& rules,
                            const ImageLimits& limits = {});

// What a position of the prompt is. Everything but text is inside an image span.
enum class TokenType : int8_t { kText = -1, kStart = 0, kImage = 1, kNewline = 2, kEnd = 3 };

// START, then each row of tokens with its NEWLINE, then END: grid.tokens() types.
std::vector<TokenType> image_span(const ImageGrid& grid);

}  // namespace mdi
