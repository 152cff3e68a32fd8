// The image path of a checkpoint with a vision tower: pixels, grid, patches, tower, aligner.
#pragma once

#include <filesystem>
#include <string>

#include "engine/golden/prompt.h"

namespace mdi::golden {

// A file of `imageN.rgb`, `imageN.grid`, ... beside DIR/imageN.png. Decoding, grid, prepared pixels and patches are
// exact; what the tower computes is compared as far as the golden data's tolerances say. Each stage starts from the
// stored result of the one before.
void check_images(Context& context, const Model& model, const std::filesystem::path& dir, GoldenFile& file,
                  const std::string& prefix, Report& report);

// The rows of a prompt's image spans, from the checkpoint's image files on: which file stands in a span is not stored,
// so of the files whose grid is the span's the nearest one counts.
void check_span_rows(const Prompt& prompt);
// The stored first positions of the spans, which the token types say, too.
void check_span_starts(const Prompt& prompt);

}  // namespace mdi::golden
