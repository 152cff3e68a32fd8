// model.safetensors.index.json: which file of a sharded checkpoint holds which tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mdi {

struct SafetensorsIndex {
  struct Place {
    std::string tensor;
    uint32_t shard = 0;  // position in shards
  };
  std::vector<std::string> shards;     // plain file names, ascending
  std::vector<Place> tensors;          // in the file's order; no name twice
  std::optional<uint64_t> total_size;  // bytes of all tensors, if the file says so
};

// Throws mdi::Error naming `where` and the tensor or key. A shard's name that could lead out of the folder is refused.
SafetensorsIndex parse_safetensors_index(std::string_view text, std::string_view where);

}  // namespace mdi
