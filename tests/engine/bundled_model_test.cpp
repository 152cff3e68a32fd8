// The bundled model against what PyTorch computed from the same checkpoint (tools/train/reference.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/eval.h"
#include "engine/generator.h"
#include "engine/load.h"

namespace mdi {
namespace {

struct BundledModel : ::testing::Test {
  std::filesystem::path dir = std::filesystem::path(MDI_SOURCE_DIR) / "models/small";
  LoadedModel loaded = load_for_cpu(dir);
  nlohmann::json reference = nlohmann::json::parse(std::ifstream(dir / "reference.json"));

  GenerateRequest greedy(const std::string& prompt, int32_t tokens) const {
    GenerateRequest request;
    request.prompt = loaded.tokenizer->encode(prompt);
    request.max_tokens = tokens;
    request.sampling.temperature = 0.0f;
    return request;
  }
};

// Half a percent over all texts is far less than any missing part of the network costs.
TEST_F(BundledModel, PredictsHeldOutTextAsPyTorchDoes) {
  const ModelConfig& config = loaded.model.config();
  const std::vector<int32_t> bytes = token_bytes(*loaded.tokenizer, config.vocab_size);
  double bits = 0, expected = 0;
  for (const auto& entry : reference["texts"]) {
    std::vector<int32_t> tokens = {config.bos_token_id};
    const auto text = loaded.tokenizer->encode(entry["text"].get<std::string>());
    tokens.insert(tokens.end(), text.begin(), text.end());
    const EvalResult r = evaluate(*loaded.context, loaded.model, tokens, bytes, EvalOptions{});
    EXPECT_EQ(r.bytes, static_cast<int64_t>(entry["text"].get<std::string>().size()));
    // It is a language model, not noise: under 2 bits a byte of English prose.
    EXPECT_LT(r.bits_per_byte(), 2.0) << entry["source"];
    bits += r.bits;
    expected += entry["bits"].get<double>();
  }
  EXPECT_NEAR(bits, expected, 0.005 * expected);
}

// Where a continuation parts from PyTorch's, the margin between the two best tokens must be one that rounding moves:
// one bf16 unit in one value of each embedding row moves margins by up to 1.7 (99% of them by less than 1).
TEST_F(BundledModel, ContinuesPromptsAsPyTorchDoes) {
  Generator generator(*loaded.context, loaded.model, 512, 256);
  int count = 0, some_words = 0;
  for (const auto& entry : reference["greedy"]) {
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    const GenerateResult r = generator.run(greedy(entry["prompt"], static_cast<int32_t>(ids.size())));
    const auto parted = static_cast<size_t>(
        std::mismatch(ids.begin(), ids.end(), r.tokens.begin(), r.tokens.end()).first - ids.begin());
    if (parted < ids.size()) {
      EXPECT_LT(entry["margins"][parted].get<double>(), 1.7) << entry["prompt"] << " parts at " << parted;
    }
    ++count;
    some_words += parted == ids.size() || parted >= 4 ? 1 : 0;
  }
  EXPECT_EQ(count, 20);
  EXPECT_GE(some_words, 14);
}

// Greedy output with drafts is greedy output, in fewer steps than tokens.
TEST_F(BundledModel, DraftsSaveSteps) {
  Generator generator(*loaded.context, loaded.model, 512, 256);
  GenerateRequest request = greedy("The database file is", 96);
  const GenerateResult plain = generator.run(request);
  request.draft = true;
  const GenerateResult drafted = generator.run(request);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_LT(drafted.decode_steps, 3 * plain.decode_steps / 4);
}

}  // namespace
}  // namespace mdi
