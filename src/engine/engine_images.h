// Images of requests, encoded on the engine's thread: a context and the vision tower have one user at a time.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "cache/prefix_key.h"
#include "model/vision_tower.h"

namespace mdi {

// Encodes images and keeps the rows of the latest by their digests, so that a conversation that is sent again with its
// images does not wait for the tower again.
class ImageEncoder {
 public:
  // Allocates what the largest image takes on the device. `max_bytes`: of the rows that are kept, on the host. Throws
  // mdi::Error for a model without a vision tower.
  ImageEncoder(Context& context, const Model& model, size_t max_bytes = size_t{128} << 20);

  struct Result {
    std::vector<bf16> rows;  // [grid.tokens(), dim], delimiters included
    bool kept = false;       // nothing was run
  };
  // `digest`: of the image's bytes. Throws mdi::Error for an image beyond the model's limits.
  Result encode(const PreparedImage& image, const ImageDigest& digest);

 private:
  struct Entry {
    ImageDigest digest;
    std::vector<bf16> rows;
    size_t bytes() const { return rows.size() * sizeof(bf16); }
  };

  Context& context_;
  const Model& model_;
  VisionBuffers buffers_;
  size_t max_bytes_, bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first; few, because each is large
};

}  // namespace mdi
