// The vision tower and its aligner: one image's patches to the rows that stand in the text network's embedded sequence
// (spec vision.md 2 to 4).
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "model/state.h"
#include "vision/prepare.h"

namespace mdi {

// The limits under which images are prepared for this model.
ImageRules image_rules(const VisionConfig& config);

// What one image needs on its way, on the context's device: sized once for the largest that image_rules allows.
struct VisionBuffers {
  // Throws mdi::Error when the model has no vision tower or the backend cannot run one.
  VisionBuffers(Context& context, const Model& model);

  int64_t max_patches, max_features;
  DeviceBuffer x, normed;        // stream and sublayer input or output [patches, dim]
  DeviceBuffer wide, narrow;     // patches' pixels, q k v or gate and up; attention output or gated product
  DeviceBuffer windows, hidden;  // aligner [features, dim * downsample^2], [features, text dim]
  DeviceBuffer features;         // [features, text dim]
  DeviceBuffer frequencies;      // of the 2-D rope
};

// Leaves the image's aligner rows [grid.features(), text dim] in buffers.features. The context's tap sees patch_embed,
// vit_out and aligner_out. Throws mdi::Error for an image beyond the buffers' limits.
void vision_forward(Context& context, const Model& model, const PreparedImage& image, VisionBuffers& buffers);

// The rows of the image's whole span, delimiters included: [grid.tokens(), text dim] on the host.
std::vector<bf16> image_rows(Context& context, const Model& model, const PreparedImage& image, VisionBuffers& buffers);

}  // namespace mdi
