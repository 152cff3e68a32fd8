#include "checkpoint/synth.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <span>

#include "checkpoint/byte_size.h"
#include "checkpoint/config_json.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/staging_dir.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace mdi {

namespace {

// One task generates and writes about this much: far more than a system call costs, and small enough for all cores to
// finish a file together.
constexpr int64_t kTaskBytes = int64_t{4} << 20;

struct Piece {
  size_t tensor = 0;
  int64_t first_row = 0, rows = 0;
};

// Consecutive pieces of one file, written by one call.
struct Task {
  uint64_t offset = 0;
  int64_t bytes = 0;
  std::vector<Piece> pieces;
};

std::vector<Task> split_tasks(std::span<const TensorFill> fills, const SafetensorsLayout& layout) {
  std::vector<Task> tasks;
  for (size_t t = 0; t < fills.size(); ++t) {
    const TensorFill& f = fills[t];
    for (int64_t row = 0; row < f.rows;) {
      const uint64_t offset = layout.offsets[t] + static_cast<uint64_t>(row * f.row_bytes);
      if (tasks.empty() || tasks.back().bytes >= kTaskBytes) tasks.push_back({offset, 0, {}});
      Task& task = tasks.back();
      const int64_t room = std::max<int64_t>(1, (kTaskBytes - task.bytes) / std::max<int64_t>(1, f.row_bytes));
      const int64_t rows = std::min(room, f.rows - row);
      task.pieces.push_back({t, row, rows});
      task.bytes += rows * f.row_bytes;
      row += rows;
    }
  }
  return tasks;
}

struct Progress {
  const SynthOptions& options;
  uint64_t total = 0;
  uint64_t done = 0;
  std::mutex mutex;

  void add(uint64_t bytes) {
    if (!options.progress) return;
    const std::lock_guard lock(mutex);
    done += bytes;
    options.progress(done, total);
  }
};

void write_payload(OutputFile& file, std::span<const TensorFill> fills, const SafetensorsLayout& layout,
                   ThreadPool& pool, Progress& progress) {
  const std::vector<Task> tasks = split_tasks(fills, layout);
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  pool.for_each(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    if (failed) return;
    try {
      static thread_local std::vector<uint8_t> buffer;
      const Task& task = tasks[static_cast<size_t>(i)];
      buffer.resize(static_cast<size_t>(task.bytes));
      uint8_t* out = buffer.data();
      for (const Piece& p : task.pieces) {
        fill_rows(fills[p.tensor], p.first_row, p.rows, out);
        out += p.rows * fills[p.tensor].row_bytes;
      }
      file.write_at(task.offset, buffer.data(), buffer.size());
      progress.add(buffer.size());
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      failed = true;
    }
  });
  if (failure) std::rethrow_exception(failure);
}

std::string shard_name(size_t index, size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

std::string index_json(std::span<const std::vector<TensorSpec>> shards, uint64_t total_bytes) {
  std::vector<std::pair<std::string_view, size_t>> names;
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const TensorSpec& t : shards[s]) names.emplace_back(t.name, s);
  }
  std::sort(names.begin(), names.end());
  std::string out =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("{}\n    \"{}\": \"{}\"", i == 0 ? "" : ",", names[i].first,
                       shard_name(names[i].second, shards.size()));
  }
  return out + "\n  }\n}";
}

void check_space(const std::filesystem::path& dir, uint64_t needed, uint64_t available) {
  if (needed <= available) return;
  throw Error(dir.string(), fmt::format("the disk is too small: {} are needed, {} are free", size_text(needed),
                                        size_text(available)));
}

}  // namespace

std::vector<std::vector<TensorSpec>> shard_tensors(const ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.n_layers);
  const auto drafts = static_cast<size_t>(config.n_mtp_layers);
  const size_t head = 2 + layers;
  const size_t engram = head + 1 + drafts;
  std::vector<std::vector<TensorSpec>> shards(engram + config.engram_layer_ids.size());
  for (TensorSpec& t : inventory(config)) {
    size_t shard = 1;  // embeddings and image delimiters
    if (t.part == Part::kVision) {
      shard = 0;
    } else if (t.part == Part::kEngram) {
      shard = engram + static_cast<size_t>(config.engram_index(t.layer));
    } else if (t.layer >= config.n_layers) {
      shard = head + 1 + static_cast<size_t>(t.layer - config.n_layers);
    } else if (t.layer >= 0) {
      shard = 2 + static_cast<size_t>(t.layer);
    } else if (t.name == "head.weight" || t.name == "norm.weight") {
      shard = head;
    }
    shards[shard].push_back(std::move(t));
  }
  std::erase_if(shards, [](const auto& s) { return s.empty(); });
  for (auto& s : shards) {
    std::stable_sort(s.begin(), s.end(), [](const TensorSpec& a, const TensorSpec& b) {
      return dtype_size(a.dtype) > dtype_size(b.dtype);
    });
  }
  return shards;
}

SynthResult write_synthetic_checkpoint(const std::filesystem::path& dir, const ModelConfig& config,
                                       const SynthOptions& options) {
  const std::string config_text = config_json(config);
  parse_config(config_text, "config.json");  // whatever a reader would refuse is refused before anything is written

  const auto shards = shard_tensors(config);
  std::vector<SafetensorsLayout> layouts;
  SynthResult result;
  result.files = shards.size();
  for (const auto& shard : shards) {
    layouts.push_back(safetensors_layout(shard));
    result.tensors += shard.size();
    result.bytes += layouts.back().file_size - layouts.back().header.size();
    result.written += options.holes ? layouts.back().header.size() : layouts.back().file_size;
  }
  const std::string index = index_json(shards, result.bytes);
  const std::string map =
      config.engram_layer_ids.empty() ? std::string() : synthetic_token_map(config, options.traits.seed);
  const std::string tokenizer = synthetic_tokenizer(config);
  result.written += config_text.size() + index.size() + map.size() + tokenizer.size();

  StagingDir staging(dir, options.force);
  // Every file also fills its last block, and the file system keeps some room for itself.
  const uint64_t slack = (uint64_t{1} << 20) + 8192 * (shards.size() + 4);
  check_space(dir, result.written + slack, options.free_bytes.value_or(staging.free_bytes()));

  ThreadPool pool(options.threads);
  Progress progress{options, options.holes ? 0 : result.bytes, 0, {}};
  std::future<void> synced;  // one file goes to the disk while the next is generated
  for (size_t s = 0; s < shards.size(); ++s) {
    OutputFile file(staging.path() / shard_name(s, shards.size()));
    file.resize(layouts[s].file_size);
    file.write_at(0, layouts[s].header.data(), layouts[s].header.size());
    if (!options.holes) {
      std::vector<TensorFill> fills;
      fills.reserve(shards[s].size());
      for (const TensorSpec& t : shards[s]) fills.push_back(plan_fill(config, t, options.traits));
      write_payload(file, fills, layouts[s], pool, progress);
    }
    if (synced.valid()) synced.get();
    synced = std::async(std::launch::async, [f = std::move(file)]() mutable {
      f.sync();
      f.close();
    });
  }
  if (synced.valid()) synced.get();
  if (!map.empty()) write_file(staging.path() / "engram_token_map.json", map);
  if (!tokenizer.empty()) write_file(staging.path() / "tokenizer.json", tokenizer);
  write_file(staging.path() / "model.safetensors.index.json", index);
  write_file(staging.path() / "config.json", config_text);
  staging.commit();
  return result;
}

}  // namespace mdi
