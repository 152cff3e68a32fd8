#include "model/vision_tower.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

constexpr float kNormEps = 1e-6f;  // not the text network's (vision.md 2)

// One image on its way through the blocks.
struct Tower {
  Context& context;
  const VisionConfig& config;
  const VisionWeights& weights;
  VisionBuffers& buffers;
  const ImageGrid& grid;

  const Ops& ops() const { return *context.ops; }

  void norm(const bf16* weight, const DeviceBuffer& y) const {
    ops().vision_norm(context, {.rows = grid.patches(),
                                .dim = config.dim,
                                .eps = kNormEps,
                                .x = buffers.x.as<bf16>(),
                                .weight = weight,
                                .y = y.as<bf16>()});
  }

  // Shows a device array to the tap.
  void show(std::string_view name, const DeviceBuffer& values, int64_t rows, int64_t columns) const {
    if (!context.tap) return;
    std::vector<bf16> host(static_cast<size_t>(rows * columns));
    context.ops->copy_out(context, host.data(), values.as<bf16>(), rows * columns * 2);
    context.tap(name, context.layer, {.data = host.data(), .dtype = DType::kBF16, .rank = 2, .shape = {rows, columns}});
  }
};

void embed(const Tower& t, const PreparedImage& image) {
  t.ops().copy_in(t.context, t.buffers.wide.as<bf16>(), image.patches.data(),
                  static_cast<int64_t>(image.patches.size() * sizeof(bf16)));
  t.ops().vision_linear(t.context, {.rows = t.grid.patches(),
                                    .x = t.buffers.wide.as<bf16>(),
                                    .w = t.weights.patch_embed,
                                    .bias = t.weights.patch_bias,
                                    .y = t.buffers.x.as<bf16>()});
  t.show("patch_embed", t.buffers.x, t.grid.patches(), t.config.dim);
}

void attention(const Tower& t, const VisionBlockWeights& w) {
  const int32_t head_dim = t.config.dim / t.config.n_heads;
  t.norm(w.norm1, t.buffers.normed);
  t.ops().vision_linear(t.context, {.rows = t.grid.patches(),
                                    .x = t.buffers.normed.as<bf16>(),
                                    .w = w.wqkv,
                                    .bias = w.wqkv_bias,
                                    .y = t.buffers.wide.as<bf16>()});
  t.ops().vision_attention(t.context,
                           {.rows = t.grid.patches(),
                            .columns = t.grid.patch_cols,
                            .heads = t.config.n_heads,
                            .head_dim = head_dim,
                            .rope = {.inv_freq = t.buffers.frequencies.as<float>(), .rope_dim = head_dim / 2},
                            .qkv = t.buffers.wide.as<bf16>(),
                            .o = t.buffers.narrow.as<bf16>()});
  t.ops().vision_linear(t.context, {.rows = t.grid.patches(),
                                    .x = t.buffers.narrow.as<bf16>(),
                                    .w = w.wo,
                                    .bias = w.wo_bias,
                                    .residual = t.buffers.x.as<bf16>(),
                                    .y = t.buffers.x.as<bf16>()});
}

void mlp(const Tower& t, const VisionBlockWeights& w) {
  t.norm(w.norm2, t.buffers.normed);
  t.ops().vision_linear(
      t.context,
      {.rows = t.grid.patches(), .x = t.buffers.normed.as<bf16>(), .w = w.w1, .y = t.buffers.wide.as<bf16>()});
  t.ops().vision_gate(t.context, {.rows = t.grid.patches(),
                                  .inter = t.config.inter_dim,
                                  .gate_up = t.buffers.wide.as<bf16>(),
                                  .y = t.buffers.narrow.as<bf16>()});
  t.ops().vision_linear(t.context, {.rows = t.grid.patches(),
                                    .x = t.buffers.narrow.as<bf16>(),
                                    .w = w.w2,
                                    .residual = t.buffers.x.as<bf16>(),
                                    .y = t.buffers.x.as<bf16>()});
}

void align(const Tower& t) {
  t.ops().vision_windows(t.context, {.patch_rows = t.grid.patch_rows,
                                     .patch_cols = t.grid.patch_cols,
                                     .side = t.config.downsample_ratio,
                                     .dim = t.config.dim,
                                     .x = t.buffers.normed.as<bf16>(),
                                     .y = t.buffers.windows.as<bf16>()});
  t.ops().vision_linear(t.context, {.rows = t.grid.features(),
                                    .x = t.buffers.windows.as<bf16>(),
                                    .w = t.weights.aligner_w1,
                                    .bias = t.weights.aligner_b1,
                                    .gelu = true,
                                    .y = t.buffers.hidden.as<bf16>()});
  t.ops().vision_linear(t.context, {.rows = t.grid.features(),
                                    .x = t.buffers.hidden.as<bf16>(),
                                    .w = t.weights.aligner_w2,
                                    .bias = t.weights.aligner_b2,
                                    .y = t.buffers.features.as<bf16>()});
  t.show("aligner_out", t.buffers.features, t.grid.features(), t.weights.aligner_w2.n);
}

void check_image(const PreparedImage& image, const VisionConfig& config, const VisionBuffers& buffers) {
  const ImageGrid& grid = image.grid;
  const int64_t pixels = int64_t{3} * config.patch_size * config.patch_size;
  if (grid.patches() < 1 || grid.patches() > buffers.max_patches || grid.features() > buffers.max_features) {
    throw Error("image", "expected at most " + std::to_string(buffers.max_patches) + " patches and " +
                             std::to_string(buffers.max_features) + " features, found " +
                             std::to_string(grid.patches()) + " and " + std::to_string(grid.features()));
  }
  if (static_cast<int64_t>(image.patches.size()) != grid.patches() * pixels) {
    throw Error("image", "its patches were not prepared for this model");
  }
}

}  // namespace

ImageRules image_rules(const VisionConfig& config) {
  return {.patch = config.patch_size,
          .downsample = config.downsample_ratio,
          .max_tokens = config.max_n_token,
          .min_pixels = config.min_pixels,
          .max_wh_ratio = config.max_wh_ratio};
}

VisionBuffers::VisionBuffers(Context& context, const Model& model) {
  const ModelConfig& c = model.config();
  const VisionConfig& v = c.vision;
  if (!c.has_vision) throw Error("image", "the model takes text only: its config.json has no vision_config");
  if (context.ops->vision_attention == nullptr) {
    throw Error("image", "the backend '" + std::string(context.ops->name) + "' does not run the vision tower");
  }
  // Of a span's tokens at least START, END and one NEWLINE are no features.
  max_features = v.max_n_token - 3;
  max_patches = max_features * v.downsample_ratio * v.downsample_ratio;
  const auto make = [&context](int64_t rows, int64_t columns) {
    return DeviceBuffer(context, rows * columns * static_cast<int64_t>(sizeof(bf16)));
  };
  const int64_t pixels = int64_t{3} * v.patch_size * v.patch_size;
  x = make(max_patches, v.dim);
  normed = make(max_patches, v.dim);
  wide = make(max_patches, std::max({pixels, int64_t{3} * v.dim, int64_t{2} * v.inter_dim}));
  narrow = make(max_patches, std::max(v.dim, v.inter_dim));
  windows = make(max_features, int64_t{v.dim} * v.downsample_ratio * v.downsample_ratio);
  hidden = make(max_features, c.dim);
  features = make(max_features, c.dim);
  const auto bytes = static_cast<int64_t>(model.vision_frequencies.size() * sizeof(float));
  frequencies = DeviceBuffer(context, bytes);
  context.ops->copy_in(context, frequencies.as<float>(), model.vision_frequencies.data(), bytes);
}

void vision_forward(Context& context, const Model& model, const PreparedImage& image, VisionBuffers& buffers) {
  check_image(image, model.config().vision, buffers);
  const Tower t{.context = context,
                .config = model.config().vision,
                .weights = model.vision,
                .buffers = buffers,
                .grid = image.grid};
  context.layer = -1;
  embed(t, image);
  for (const VisionBlockWeights& block : t.weights.blocks) {
    attention(t, block);
    mlp(t, block);
  }
  t.norm(t.weights.norm, buffers.normed);
  t.show("vit_out", buffers.normed, image.grid.patches(), t.config.dim);
  align(t);
}

std::vector<bf16> image_rows(Context& context, const Model& model, const PreparedImage& image, VisionBuffers& buffers) {
  vision_forward(context, model, image, buffers);
  const int64_t dim = model.config().dim;
  const auto fetch = [&](const bf16* from, int64_t rows) {
    std::vector<bf16> host(static_cast<size_t>(rows * dim));
    context.ops->copy_out(context, host.data(), from, rows * dim * static_cast<int64_t>(sizeof(bf16)));
    return host;
  };
  const std::vector<bf16> features = fetch(buffers.features.as<bf16>(), image.grid.features());
  const std::vector<bf16> start = fetch(model.vision.image_start, 1);
  const std::vector<bf16> newline = fetch(model.vision.image_newline, 1);
  const std::vector<bf16> end = fetch(model.vision.image_end, 1);

  std::vector<bf16> rows(start);
  rows.reserve(static_cast<size_t>(image.grid.tokens() * dim));
  for (int64_t row = 0; row < image.grid.token_rows; ++row) {
    const auto first = features.begin() + row * image.grid.token_cols * dim;
    rows.insert(rows.end(), first, first + image.grid.token_cols * dim);
    rows.insert(rows.end(), newline.begin(), newline.end());
  }
  rows.insert(rows.end(), end.begin(), end.end());
  return rows;
}

}  // namespace mdi
