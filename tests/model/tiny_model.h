// The golden tiny checkpoint as tests use it: loaded once, its position limit raised so that long sequences fit.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/engram_token_map.h"
#include "kernels/cpu/backend.h"
#include "model/forward.h"

namespace mdi::testing {

namespace fs = std::filesystem;

// MDI_GOLDEN: where the golden data lies on a machine that has no source tree.
inline fs::path golden_dir() {
  const char* given = std::getenv("MDI_GOLDEN");
  return given != nullptr ? fs::path(given) : fs::path(MDI_SOURCE_DIR) / "tests/data/golden";
}

// A copy of a golden checkpoint (links to its tensors) with max_position_embeddings 1,048,576.
inline fs::path long_checkpoint(const std::string& name) {
  const fs::path from = golden_dir() / name;
  const fs::path to = fs::temp_directory_path() / ("mdi-" + name + "-" + std::to_string(getpid()));
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (!entry.is_regular_file()) continue;
    const fs::path target = to / entry.path().filename();
    if (fs::exists(fs::symlink_status(target))) continue;
    if (entry.path().filename() == "config.json") {
      std::ifstream in(entry.path());
      std::string text{std::istreambuf_iterator<char>(in), {}};
      const std::string key = "\"max_position_embeddings\": ";
      const size_t value = text.find(key) + key.size();
      text.replace(value, text.find_first_not_of("0123456789", value) - value, "1048576");
      std::ofstream(target) << text;
    } else {
      fs::create_symlink(fs::absolute(entry.path()), target);
    }
  }
  return to;
}

inline Model load_checkpoint(const fs::path& dir) {
  Checkpoint checkpoint = Checkpoint::open(dir);
  std::vector<int32_t> map = load_engram_token_map(dir / "engram_token_map.json", checkpoint.config());
  return load_model(std::move(checkpoint), std::move(map));
}

inline Model load_tiny_model() {
  const fs::path dir = long_checkpoint("tiny-text");
  Model loaded = load_checkpoint(dir);
  fs::remove_all(dir);  // the mapping stays
  return loaded;
}

inline const Model& tiny_model() {
  static const Model model = load_tiny_model();
  return model;
}

// Tokens that repeat often enough for n-grams and cover the vocabulary.
inline std::vector<int32_t> some_tokens(int64_t count, uint32_t seed) {
  std::vector<int32_t> tokens;
  uint32_t x = seed * 2654435761u + 1;
  for (int64_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((x >> 16) % 509));
  }
  return tokens;
}

inline std::vector<int32_t> iota_blocks(int32_t first, int64_t count) {
  std::vector<int32_t> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// Pools, buffers and a context for a few sequences of at most `max_length` tokens; sequence s has slot s and its own
// blocks.
struct Runner {
  const Model& model;
  std::shared_ptr<Context> context;
  StatePools state;
  StepBuffers buffers;
  std::vector<std::vector<int32_t>> blocks;

  Runner(const Model& m, int sequences, int64_t max_length, int32_t max_rows, int threads = 2)
      : Runner(m, make_cpu_context(threads), sequences, max_length, max_rows) {}
  // On any backend. The model's weights are where its context can read them.
  Runner(const Model& m, std::shared_ptr<Context> c, int sequences, int64_t max_length, int32_t max_rows)
      : model(m),
        context(std::move(c)),
        state(make_state(*context, m, sequences, sequences * blocks_for(max_length))),
        buffers(*context, m, max_rows, max_rows, sequences, static_cast<int32_t>(blocks_for(max_length))) {
    for (int s = 0; s < sequences; ++s) {
      blocks.push_back(iota_blocks(static_cast<int32_t>(s * blocks_for(max_length)), blocks_for(max_length)));
    }
  }

  struct Part {
    int32_t slot;
    int32_t start;
    std::vector<int32_t> tokens;
  };
  // Runs a step that samples every row; returns [rows, vocab].
  std::vector<float> run(const std::vector<Part>& parts, std::vector<int32_t> accepted = {}) {
    std::vector<std::vector<int32_t>> samples;
    std::vector<StepSequence> sequences;
    for (const Part& part : parts) samples.push_back(iota_blocks(0, static_cast<int64_t>(part.tokens.size())));
    for (size_t i = 0; i < parts.size(); ++i) {
      StepSequence sequence;
      sequence.slot = parts[i].slot;
      sequence.start = parts[i].start;
      sequence.tokens = parts[i].tokens;
      sequence.blocks = blocks[static_cast<size_t>(parts[i].slot)];
      sequence.sample_tokens = samples[i];
      sequences.push_back(sequence);
      if (accepted.size() <= i) accepted.push_back(static_cast<int32_t>(parts[i].tokens.size()));
    }
    const Step step = make_step(model, state, sequences);
    forward(*context, model, state, step, buffers);
    commit(*context, model, state, step, buffers, accepted);
    std::vector<float> logits(static_cast<size_t>(step.samples()) * static_cast<size_t>(model.config().vocab_size));
    context->ops->copy_out(*context, logits.data(), buffers.logits.as<float>(),
                           static_cast<int64_t>(logits.size() * sizeof(float)));
    return logits;
  }
};

inline std::vector<int32_t> slice(const std::vector<int32_t>& v, int64_t begin, int64_t end) {
  return {v.begin() + begin, v.begin() + end};
}

// The first row whose bits differ, or -1.
inline int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b, int64_t width) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return static_cast<int64_t>(i) / width;
  }
  return -1;
}

}  // namespace mdi::testing
