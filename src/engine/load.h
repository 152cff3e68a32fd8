// From a folder to a model that can run: checkpoint, token map, context.
#pragma once

#include <filesystem>
#include <memory>

#include "kernels/ops.h"
#include "model/model.h"

namespace mdi {

struct LoadedModel {
  std::unique_ptr<Context> context;
  Model model;
};

// threads: 0 means one per core. Throws mdi::Error.
LoadedModel load_for_cpu(const std::filesystem::path& dir, int threads = 0);

// The compressed ids that the engram layers hash (spec engram.md 1): engram_token_map.json of the folder where it has
// one, else computed from its tokenizer.json. Empty for a model without engram layers.
std::vector<int32_t> engram_map_of(const std::filesystem::path& dir, const ModelConfig& config);

}  // namespace mdi
