// Images in a prompt: each placeholder token becomes the span of one image (spec vision.md 4).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/vision_tower.h"
#include "vision/prepare.h"

namespace mdi {

// What the positions of a prompt are besides their ids, in the form that steps take (model/step.h). Both empty: text.
struct ImageSpans {
  std::vector<uint8_t> dead;  // [tokens] 1 inside a span
  std::vector<bf16> rows;     // [flagged tokens, dim]
};

// Throws mdi::Error(where, ...) unless there is a flag for each of `tokens` tokens and a row for each flag, or neither.
void check_spans(const ImageSpans& spans, int64_t tokens, int64_t dim, const std::string& where);

// Whether `prompt` embeds the tokens of `state` as they were embedded: equal ids are not equal images.
bool begins_with(const ImageSpans& prompt, const ImageSpans& state);

// Some of a prompt's tokens, as StepSequence takes them.
struct PromptPart {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> dead = {};
  std::span<const bf16> image_rows = {};
};

// Tokens [first, first + count) of a prompt with its images. A part may begin and end inside a span.
PromptPart part_of(std::span<const int32_t> tokens, const ImageSpans& spans, int64_t first, int64_t count);

// The prompt as the model sees it.
struct ImagePrompt {
  std::vector<int32_t> tokens;   // every position of a span has the placeholder's id
  std::vector<TokenType> types;  // [tokens]
  std::vector<int32_t> starts;   // first position of each span
};

// Reads, decodes and prepares image files. Throws mdi::Error naming the file: not there, not an image, too large; and
// for a model that takes text only.
std::vector<PreparedImage> load_images(const ModelConfig& config, std::span<const std::string> files);

// Placeholders for `images` images in front of a text without any, behind the token that begins a sequence.
std::vector<int32_t> put_placeholders(const ModelConfig& config, std::vector<int32_t> ids, int64_t images);

// Throws mdi::Error where the prompt's placeholders are not as many as the images, where the spans make it longer than
// the model's limit, and for images to a model that takes text only.
ImagePrompt expand_placeholders(const ModelConfig& config, std::span<const int32_t> ids,
                                std::span<const PreparedImage> images);

// Runs the vision tower on each image. `prompt` is expand_placeholders' of the same images.
ImageSpans encode_images(Context& context, const Model& model, const ImagePrompt& prompt,
                         std::span<const PreparedImage> images);

}  // namespace mdi
