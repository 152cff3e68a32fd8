#include "engine/golden/images.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "model/vision_tower.h"
#include "vision/decode.h"
#include "vision/grid.h"
#include "vision/prepare.h"
#include "vision/resize.h"

namespace mdi::golden {
namespace {

namespace fs = std::filesystem;

// rel 1e-2 is asked of vit_out and aligner_out.
const Tolerances kTower = {{Rule::kRelative, 1e-2}};
const Tolerances kEqual = {{Rule::kExact, 0}};

RgbImage decode_file(const fs::path& path) {
  const MappedFile file(path);
  return decode_image({file.data(), file.size()}, path.filename().string());
}

RgbImage image_of(const TensorView& t) {
  RgbImage image;
  image.height = static_cast<int32_t>(t.shape[0]);
  image.width = static_cast<int32_t>(t.shape[1]);
  image.pixels.assign(t.as<uint8_t>(), t.as<uint8_t>() + t.elements());
  return image;
}

struct ImageCheck {
  Context& context;
  const Model& model;
  GoldenFile& file;
  VisionBuffers& buffers;
  std::string image;   // "image0"
  std::string prefix;  // "tiny-vision/vision/"
  Report& report;

  std::string name(const char* part) const { return image + "." + part; }
  void check(const char* part, const TensorView& found, const Tolerances& tolerances) const {
    if (!file.has(name(part))) return;
    report.add(compare(prefix + name(part), found, file.get(name(part)), tolerances));
  }
};

void run_tower(const ImageCheck& c, const PreparedImage& prepared) {
  c.context.tap = [&c](std::string_view name, int, const TensorView& value) {
    c.check(std::string(name).c_str(), value, kTower);
  };
  try {
    vision_forward(c.context, c.model, prepared, c.buffers);
  } catch (...) {
    c.context.tap = nullptr;
    throw;
  }
  c.context.tap = nullptr;
}

void check_image(const ImageCheck& c, const fs::path& dir) {
  const ImageRules rules = image_rules(c.model.config().vision);
  const TensorView stored = c.file.get(c.name("rgb"), DType::kU8, {kAnySize, kAnySize, 3});
  const fs::path png = dir / (c.image + ".png");
  if (fs::exists(png)) {
    const RgbImage decoded = decode_file(png);
    c.report.add(
        compare(c.prefix + c.name("rgb"), view(decoded.pixels, {decoded.height, decoded.width, 3}), stored, kEqual));
  } else {
    c.report.skip(c.prefix + c.name("rgb"), "there is no " + c.image + ".png to decode");
  }
  const ImageGrid grid = plan_grid(stored.shape[1], stored.shape[0], rules);
  const std::vector<int32_t> planned = {grid.patch_rows, grid.patch_cols, grid.token_rows, grid.token_cols};
  c.check("grid", view(planned), kEqual);

  RgbImage prepared = fit_image(image_of(stored), grid, place_image(stored.shape[1], stored.shape[0], grid));
  c.check("prepared_rgb", view(prepared.pixels, {prepared.height, prepared.width, 3}), kEqual);
  if (c.file.has(c.name("prepared_rgb"))) {
    prepared = image_of(c.file.get(c.name("prepared_rgb"), DType::kU8, {grid.height, grid.width, 3}));
  }
  const PreparedImage image{grid, make_patches(prepared, rules.patch)};
  c.check("patches", view(image.patches), kEqual);
  run_tower(c, image);
}

}  // namespace

void check_images(Context& context, const Model& model, const fs::path& dir, GoldenFile& file,
                  const std::string& prefix, Report& report) {
  VisionBuffers buffers(context, model);
  std::set<std::string> images;
  for (const std::string& name : file.names()) images.insert(name.substr(0, name.find('.')));
  for (const std::string& image : images) {
    try {
      check_image({context, model, file, buffers, image, prefix, report}, dir);
    } catch (const std::exception& e) {
      report.fail(prefix + image, e.what());
    }
  }
  for (const std::string& name : file.unused()) report.skip(prefix + name, "nothing compares this tensor");
}

namespace {

// A span of a prompt: its rows, and the grid that its newlines draw.
struct Span {
  int64_t first = 0, count = 0;
  int64_t token_rows = 0, token_cols = 0;
};

std::vector<Span> spans_of(const TensorView& types) {
  std::vector<Span> spans;
  int64_t features = 0;
  for (int64_t i = 0; i < types.shape[0]; ++i) {
    const int32_t type = types.as<int32_t>()[i];
    if (type == static_cast<int32_t>(TokenType::kStart)) {
      spans.push_back({.first = i});
      features = 0;
    }
    if (type < 0 || spans.empty()) continue;
    Span& span = spans.back();
    span.count = i + 1 - span.first;
    features += type == static_cast<int32_t>(TokenType::kImage) ? 1 : 0;
    span.token_rows += type == static_cast<int32_t>(TokenType::kNewline) ? 1 : 0;
    span.token_cols = span.token_rows > 0 ? features / span.token_rows : 0;
  }
  return spans;
}

}  // namespace

void check_span_starts(const Prompt& p) {
  if (!p.file.has("input.image_starts")) return;
  std::vector<int32_t> starts;
  for (const Span& span : spans_of(p.file.get("input.token_types", DType::kI32, {kAnySize}))) {
    starts.push_back(static_cast<int32_t>(span.first));
  }
  p.report.add(compare(p.prefix + "input.image_starts", view(starts), p.file.get("input.image_starts"), kEqual));
}

void check_span_rows(const Prompt& p) {
  const int64_t n = p.file.peek("input.tokens").shape[0], dim = p.model.config().dim;
  const TensorView types = p.file.get("input.token_types", DType::kI32, {n});
  const TensorView embedded = p.file.get("prefill.embed_out", DType::kBF16, {n, dim});
  const ImageRules rules = image_rules(p.model.config().vision);
  VisionBuffers buffers(p.context, p.model);
  std::vector<PreparedImage> images;
  for (int i = 0;; ++i) {
    const fs::path path = p.dir / ("image" + std::to_string(i) + ".png");
    if (!fs::exists(path)) break;
    images.push_back(prepare_image(decode_file(path), rules));
  }
  int index = 0;
  for (const Span& span : spans_of(types)) {
    const std::string name = p.prefix + "prefill.span" + std::to_string(index++) + ".rows";
    TensorView stored = embedded;
    stored.data = embedded.as<bf16>() + span.first * dim;
    stored.shape[0] = span.count;
    std::vector<bf16> nearest;
    double distance = std::numeric_limits<double>::infinity();
    for (const PreparedImage& image : images) {
      if (image.grid.token_rows != span.token_rows || image.grid.token_cols != span.token_cols) continue;
      const std::vector<bf16> rows = image_rows(p.context, p.model, image, buffers);
      if (static_cast<int64_t>(rows.size()) != stored.elements()) continue;
      const double rel = measure(Rule::kRelative, view(rows), stored);
      if (!nearest.empty() && !(rel < distance)) continue;
      distance = rel;
      nearest = rows;
    }
    if (nearest.empty()) {
      p.report.skip(name, "no image file beside the checkpoint has the span's grid");
    } else {
      p.report.add(compare(name, view(nearest), stored, kTower, dim));
    }
  }
}

}  // namespace mdi::golden
