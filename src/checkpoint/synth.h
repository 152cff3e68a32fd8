// Writes checkpoints of the released format at any shape, filled with random values or with nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "checkpoint/synth_values.h"

namespace mdi {

struct SynthOptions {
  SynthTraits traits;
  bool holes = false;  // real headers, payloads never written: they read as zeros and take no room on disk
  bool force = false;  // replace a checkpoint that is already there
  int threads = 0;     // 0: one per core
  std::optional<uint64_t> free_bytes;                // instead of what the file system says, for tests
  std::function<void(uint64_t, uint64_t)> progress;  // bytes written, bytes in all; called now and then
};

struct SynthResult {
  size_t tensors = 0, files = 0;  // files: shards
  uint64_t bytes = 0;             // of the tensors
  uint64_t written = 0;           // bytes really written, headers and small files included
};

// Writes config.json, engram_token_map.json, tokenizer.json, model.safetensors.index.json and the shards. `dir` appears
// whole, by one rename, after everything is on the disk (staging_dir.h). The same config and traits give the same
// bytes, at any number of threads. Throws mdi::Error when the configuration is not valid, when the disk is too small or
// becomes full, or when `dir` may not be replaced; nothing stays behind then.
SynthResult write_synthetic_checkpoint(const std::filesystem::path& dir, const ModelConfig& config,
                                       const SynthOptions& options);

// How tensors are spread over shards (spec checkpoint.md section 2): vision; embeddings; each layer without its engram;
// head and norm; each draft layer; the engram of each layer. Parts that the model lacks have no shard. Within a shard
// wide elements come first, so that all are aligned.
std::vector<std::vector<TensorSpec>> shard_tensors(const ModelConfig& config);

// engram_token_map.json for a configuration without a tokenizer: a random map onto all compressed ids, with the primes,
// offsets and multipliers that follow from the configuration, as in the golden checkpoints.
std::string synthetic_token_map(const ModelConfig& config, uint64_t seed);

// tokenizer.json for a configuration without a trained one: a token for each byte and the chat format's markers, so
// that text and `mdi chat` work. Empty where the vocabulary has no room for them, or is so large that it stands for a
// real model's.
std::string synthetic_tokenizer(const ModelConfig& config);

}  // namespace mdi
