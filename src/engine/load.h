// From a folder to a model that can run: checkpoint, tokenizer, token map, context.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace mdi {

struct LoadedModel {
  std::unique_ptr<Context> context;
  Model model;
  std::optional<Tokenizer> tokenizer;  // none: the folder has no tokenizer.json
};

// threads: 0 means one per core. Throws mdi::Error, also for a tokenizer that knows more tokens than the model.
LoadedModel load_for_cpu(const std::filesystem::path& dir, int threads = 0);

// The tokenizer of a folder, or of one that has none an error that says what needs it.
const Tokenizer& need_tokenizer(const LoadedModel& loaded, const char* what);

// The compressed ids that the engram layers hash (spec engram.md 1): engram_token_map.json of the folder where it has
// one, else computed from its tokenizer. Empty for a model without engram layers.
std::vector<int32_t> engram_map_of(const std::filesystem::path& dir, const ModelConfig& config,
                                   const std::optional<Tokenizer>& tokenizer);

}  // namespace mdi
