#include "engine/load.h"

#include <string>

#include "checkpoint/engram_token_map.h"
#include "core/error.h"
#include "kernels/cpu/backend.h"
#include "text/engram_map.h"

namespace mdi {

std::vector<int32_t> engram_map_of(const std::filesystem::path& dir, const ModelConfig& config,
                                   const std::optional<Tokenizer>& tokenizer) {
  if (config.engram_layer_ids.empty()) return {};
  const auto file = dir / "engram_token_map.json";
  if (std::filesystem::exists(file)) return load_engram_token_map(file, config);
  if (!tokenizer) {
    throw Error(dir.string(), "the engram layers need engram_token_map.json or tokenizer.json, found neither");
  }
  EngramMap map = engram_token_map(*tokenizer);
  if (map.ids.size() != static_cast<size_t>(config.vocab_size) || map.count != config.engram_compressed_vocab_size) {
    throw Error((dir / "tokenizer.json").string(),
                "its " + std::to_string(map.ids.size()) + " tokens have " + std::to_string(map.count) +
                    " compressed ids; config.json says vocab_size " + std::to_string(config.vocab_size) +
                    " and engram_compressed_vocab_size " + std::to_string(config.engram_compressed_vocab_size));
  }
  return std::move(map.ids);
}

Model load_model_of(const std::filesystem::path& dir, std::optional<Tokenizer>& tokenizer) {
  Checkpoint checkpoint = Checkpoint::open(dir);
  const ModelConfig& config = checkpoint.config();
  const auto file = dir / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    tokenizer = Tokenizer::load(file);
    if (tokenizer->size() > config.vocab_size) {
      throw Error(file.string(), "it has " + std::to_string(tokenizer->size()) + " tokens, the model's vocab_size is " +
                                     std::to_string(config.vocab_size));
    }
  }
  std::vector<int32_t> map = engram_map_of(dir, config, tokenizer);
  return load_model(std::move(checkpoint), std::move(map));
}

LoadedModel load_for_cpu(const std::filesystem::path& dir, int threads) {
  std::optional<Tokenizer> tokenizer;
  Model model = load_model_of(dir, tokenizer);
  return {
      .context = make_cpu_context(threads), .model = std::move(model), .tokenizer = std::move(tokenizer), .placed = {}};
}

LoadedModel load_for(const std::string& device, const std::filesystem::path& dir, int threads) {
  if (device == "cuda") return load_for_cuda(dir);
  if (device == "cpu") return load_for_cpu(dir, threads);
  throw Error("device", "expected cpu or cuda, found '" + device + "'");
}

const Tokenizer& need_tokenizer(const LoadedModel& loaded, const char* what) {
  if (!loaded.tokenizer) {
    throw Error(loaded.model.checkpoint.dir().string(), std::string(what) + " needs a tokenizer.json, found none");
  }
  return *loaded.tokenizer;
}

}  // namespace mdi
