#include "engine/image_prompt.h"

#include <algorithm>

#include "core/error.h"
#include "core/mapped_file.h"

namespace mdi {

namespace {

void need_vision(const ModelConfig& config) {
  if (!config.has_vision) throw Error("image", "the model takes text only: its config.json has no vision_config");
}

std::string count_text(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

void check_spans(const ImageSpans& spans, int64_t tokens, int64_t dim, const std::string& where) {
  const auto flagged = std::count(spans.dead.begin(), spans.dead.end(), 1);
  const bool flags = spans.dead.empty() || static_cast<int64_t>(spans.dead.size()) == tokens;
  if (!flags || static_cast<int64_t>(spans.rows.size()) != flagged * dim) {
    throw Error(where, "the images of a prompt of " + std::to_string(tokens) + " tokens have " +
                           std::to_string(spans.dead.size()) + " flags, and " + std::to_string(spans.rows.size()) +
                           " values for " + std::to_string(flagged) + " rows of " + std::to_string(dim));
  }
}

bool begins_with(const ImageSpans& prompt, const ImageSpans& state) {
  if (state.rows.empty() && prompt.rows.empty()) return true;
  const auto same_bits = [](bf16 a, bf16 b) { return a.bits == b.bits; };
  return state.dead.size() <= prompt.dead.size() && state.rows.size() <= prompt.rows.size() &&
         std::equal(state.dead.begin(), state.dead.end(), prompt.dead.begin()) &&
         std::equal(state.rows.begin(), state.rows.end(), prompt.rows.begin(), same_bits);
}

PromptPart part_of(std::span<const int32_t> tokens, const ImageSpans& spans, int64_t first, int64_t count) {
  const auto at = static_cast<size_t>(first), size = static_cast<size_t>(count);
  PromptPart part{.tokens = tokens.subspan(at, size)};
  if (spans.rows.empty()) return part;
  const auto flags = [&](size_t begin, size_t end) {
    const auto flag = spans.dead.begin();
    return static_cast<size_t>(std::count(flag + static_cast<ptrdiff_t>(begin), flag + static_cast<ptrdiff_t>(end), 1));
  };
  const size_t dim = spans.rows.size() / flags(0, spans.dead.size());
  part.dead = std::span(spans.dead).subspan(at, size);
  part.image_rows = std::span(spans.rows).subspan(flags(0, at) * dim, flags(at, at + size) * dim);
  return part;
}

std::vector<PreparedImage> load_images(const ModelConfig& config, std::span<const std::string> files) {
  if (!files.empty()) need_vision(config);
  std::vector<PreparedImage> images;
  for (const std::string& name : files) {
    const MappedFile file(name);
    images.push_back(prepare_image({file.data(), file.size()}, name, image_rules(config.vision)));
  }
  return images;
}

std::vector<int32_t> put_placeholders(const ModelConfig& config, std::vector<int32_t> ids, int64_t images) {
  if (std::find(ids.begin(), ids.end(), config.image_token_id) != ids.end()) return ids;
  const bool begins = !ids.empty() && ids.front() == config.bos_token_id;
  ids.insert(ids.begin() + (begins ? 1 : 0), static_cast<size_t>(images), config.image_token_id);
  return ids;
}

ImagePrompt expand_placeholders(const ModelConfig& config, std::span<const int32_t> ids,
                                std::span<const PreparedImage> images) {
  if (!images.empty()) need_vision(config);
  const auto found = config.has_vision ? std::count(ids.begin(), ids.end(), config.image_token_id) : 0;
  if (found != static_cast<int64_t>(images.size())) {
    throw Error("prompt", "expected one placeholder (token " + std::to_string(config.image_token_id) +
                              ") for each image, found " + count_text(found, "placeholder") + " and " +
                              count_text(static_cast<int64_t>(images.size()), "image"));
  }
  auto length = static_cast<int64_t>(ids.size()) - found;
  for (const PreparedImage& image : images) length += image.grid.tokens();
  if (length > config.max_position_embeddings) {
    throw Error("prompt", "it has " + std::to_string(length) + " tokens with its images, the model's limit is " +
                              std::to_string(config.max_position_embeddings));
  }

  ImagePrompt prompt;
  for (const int32_t id : ids) {
    if (images.empty() || id != config.image_token_id) {
      prompt.tokens.push_back(id);
      prompt.types.push_back(TokenType::kText);
      continue;
    }
    const std::vector<TokenType> span = image_span(images[prompt.starts.size()].grid);
    prompt.starts.push_back(static_cast<int32_t>(prompt.tokens.size()));
    prompt.tokens.insert(prompt.tokens.end(), span.size(), id);
    prompt.types.insert(prompt.types.end(), span.begin(), span.end());
  }
  return prompt;
}

ImageSpans encode_images(Context& context, const Model& model, const ImagePrompt& prompt,
                         std::span<const PreparedImage> images) {
  ImageSpans spans;
  if (images.empty()) return spans;
  for (const TokenType type : prompt.types) spans.dead.push_back(type == TokenType::kText ? 0 : 1);
  VisionBuffers buffers(context, model);
  for (const PreparedImage& image : images) {
    const std::vector<bf16> rows = image_rows(context, model, image, buffers);
    spans.rows.insert(spans.rows.end(), rows.begin(), rows.end());
  }
  return spans;
}

}  // namespace mdi
