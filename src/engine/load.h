// From a folder to a model that can run: checkpoint, tokenizer, token map, context.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "model/state.h"
#include "text/tokenizer.h"

namespace mdi {

struct LoadedModel {
  std::unique_ptr<Context> context;
  Model model;
  std::optional<Tokenizer> tokenizer;  // none: the folder has no tokenizer.json
  DeviceBuffer placed;                 // the weights in device memory; empty on the CPU
};

// threads: 0 means one per core. Throws mdi::Error, also for a tokenizer that knows more tokens than the model.
LoadedModel load_for_cpu(const std::filesystem::path& dir, int threads = 0);

// The same on the GPU, which is looked at first: an error says that this build has no CUDA backend, that there is no
// GPU of the right architecture, or what does not fit into its memory, before anything is loaded.
LoadedModel load_for_cuda(const std::filesystem::path& dir);

// "cpu" or "cuda".
LoadedModel load_for(const std::string& device, const std::filesystem::path& dir, int threads = 0);

// Folder to model, with its weights where the checkpoint maps them.
Model load_model_of(const std::filesystem::path& dir, std::optional<Tokenizer>& tokenizer);

// The tokenizer of a folder, or of one that has none an error that says what needs it.
const Tokenizer& need_tokenizer(const LoadedModel& loaded, const char* what);

// The compressed ids that the engram layers hash (spec engram.md 1): engram_token_map.json of the folder where it has
// one, else computed from its tokenizer. Empty for a model without engram layers.
std::vector<int32_t> engram_map_of(const std::filesystem::path& dir, const ModelConfig& config,
                                   const std::optional<Tokenizer>& tokenizer);

}  // namespace mdi
