#include "engine/load.h"

#include "checkpoint/engram_token_map.h"
#include "core/error.h"
#include "kernels/cpu/backend.h"

namespace mdi {

std::vector<int32_t> engram_map_of(const std::filesystem::path& dir, const ModelConfig& config) {
  if (config.engram_layer_ids.empty()) return {};
  const auto file = dir / "engram_token_map.json";
  if (std::filesystem::exists(file)) return load_engram_token_map(file, config);
  throw Error(dir.string(), "the engram layers need engram_token_map.json or tokenizer.json, found neither");
}

LoadedModel load_for_cpu(const std::filesystem::path& dir, int threads) {
  Checkpoint checkpoint = Checkpoint::open(dir);
  std::vector<int32_t> map = engram_map_of(dir, checkpoint.config());
  Model model = load_model(std::move(checkpoint), std::move(map));
  return {.context = make_cpu_context(threads), .model = std::move(model)};
}

}  // namespace mdi
