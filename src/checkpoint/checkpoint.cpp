#include "checkpoint/checkpoint.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <unordered_map>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_index.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/thread_pool.h"

namespace mdi {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint32_t kNowhere = UINT32_MAX;

using Names = std::unordered_map<std::string_view, uint32_t>;  // position in the inventory

std::string shown(const std::filesystem::path& path) { return printable(path.string(), 400); }

[[noreturn]] void fail(const std::filesystem::path& file, std::string_view tensor, const std::string& message) {
  throw Error(shown(file), "tensor '" + printable(tensor) + "': " + message);
}

std::string kind_text(const TensorView& t) { return std::string(dtype_name(t.dtype)) + " " + shape_text(t); }
std::string kind_text(const TensorSpec& t) { return kind_text(TensorView{nullptr, t.dtype, t.rank, t.shape}); }

Names names_of(const std::vector<TensorSpec>& specs) {
  Names names(specs.size());
  for (uint32_t i = 0; i < specs.size(); ++i) names.emplace(specs[i].name, i);
  return names;
}

// The index of the folder, or nothing for a single file.
std::optional<SafetensorsIndex> choose_index(const std::filesystem::path& dir) {
  std::error_code unreadable;
  const bool has_single = std::filesystem::exists(dir / kSingleName, unreadable);
  const bool has_index = std::filesystem::exists(dir / kIndexName, unreadable);
  if (!has_single && !has_index) {
    throw Error(shown(dir), std::string("expected ") + kSingleName + " or " + kIndexName + ", found neither");
  }
  if (!has_index) return std::nullopt;
  const MappedFile file(dir / kIndexName);
  SafetensorsIndex index = parse_safetensors_index(file.text(), shown(file.path()));
  if (has_single) {
    if (index.shards != std::vector<std::string>{kSingleName}) {
      throw Error(shown(dir), std::string("holds both ") + kSingleName + " and an index of other files; expected one");
    }
    spdlog::info("{}: using {}, which names only {}", dir.string(), kIndexName, kSingleName);
  }
  return index;
}

std::vector<SafetensorsFile> open_files(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::optional<SafetensorsFile>> opened(paths.size());
  std::vector<std::exception_ptr> failures(paths.size());
  ThreadPool pool(static_cast<int>(std::min<size_t>(paths.size(), 8)));
  pool.for_each(static_cast<int64_t>(paths.size()), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      opened[at].emplace(paths[at]);
    } catch (...) {
      failures[at] = std::current_exception();
    }
  });
  // The first by name, whichever thread was faster.
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  std::vector<SafetensorsFile> files;
  files.reserve(opened.size());
  for (auto& file : opened) files.push_back(std::move(*file));
  return files;
}

}  // namespace

struct Checkpoint::State {
  enum class Use : uint8_t { kAbsent, kOpen, kTaken, kIgnored };

  std::filesystem::path dir;
  ModelConfig config;
  std::vector<TensorSpec> specs;
  Names names;  // keys point into specs
  std::vector<SafetensorsFile> files;
  std::vector<std::filesystem::path> paths;
  std::vector<TensorView> views;  // as specs
  std::vector<Use> uses;
  std::vector<std::pair<Part, std::string>> ignored;
  std::vector<std::unique_ptr<uint64_t[]>> aligned;  // copies of tensors that lie askew in their file

  // Every tensor of the index is in the inventory; returns the file of each.
  std::vector<uint32_t> places(const SafetensorsIndex& index) const {
    const std::filesystem::path path = dir / kIndexName;
    std::vector<uint32_t> shard_of(specs.size(), kNowhere);
    for (const auto& place : index.tensors) {
      const auto at = names.find(place.tensor);
      if (at == names.end()) fail(path, place.tensor, "is not part of the model that config.json describes");
      shard_of[at->second] = place.shard;
    }
    const auto missing = static_cast<size_t>(std::count(shard_of.begin(), shard_of.end(), kNowhere));
    if (missing > 0) {
      const auto first = static_cast<size_t>(std::find(shard_of.begin(), shard_of.end(), kNowhere) - shard_of.begin());
      fail_missing(path, first, missing);
    }
    return shard_of;
  }

  [[noreturn]] void fail_missing(const std::filesystem::path& path, size_t spec, size_t count) const {
    fail(path, specs[spec].name,
         "is missing (" + kind_text(specs[spec]) + "; " + std::to_string(count) + " of " +
             std::to_string(specs.size()) + " tensors are)");
  }

  // Every tensor of file `f` is in the inventory, as the inventory says, and in the file that the index says.
  void match(uint32_t f, const std::vector<uint32_t>* shard_of) {
    for (const auto& entry : files[f].header().tensors) {
      const auto at = names.find(entry.name);
      if (at == names.end()) fail(paths[f], entry.name, "is not part of the model that config.json describes");
      const TensorSpec& spec = specs[at->second];
      const TensorView view = files[f].view(entry);
      if (view.dtype != spec.dtype || view.rank != spec.rank || view.shape != spec.shape) {
        fail(paths[f], entry.name, "expected " + kind_text(spec) + ", found " + kind_text(view));
      }
      if (shard_of != nullptr && (*shard_of)[at->second] != f) {
        fail(paths[f], entry.name,
             std::string(kIndexName) + " places it in " + shown(paths[(*shard_of)[at->second]].filename()));
      }
      views[at->second] = view;
      uses[at->second] = Use::kOpen;
    }
  }

  void load(const std::optional<SafetensorsIndex>& index) {
    std::vector<uint32_t> shard_of;
    if (index) {
      shard_of = places(*index);
      for (const auto& name : index->shards) paths.push_back(dir / name);
    } else {
      paths.push_back(dir / kSingleName);
    }
    files = open_files(paths);
    views.resize(specs.size());
    uses.assign(specs.size(), Use::kAbsent);
    for (uint32_t f = 0; f < files.size(); ++f) match(f, index ? &shard_of : nullptr);
    const auto missing = static_cast<size_t>(std::count(uses.begin(), uses.end(), Use::kAbsent));
    if (missing > 0) {
      const auto first = static_cast<size_t>(std::find(uses.begin(), uses.end(), Use::kAbsent) - uses.begin());
      fail_missing(paths[index ? shard_of[first] : 0], first, missing);
    }
    if (index && index->total_size) check_total(*index->total_size);
  }

  void check_total(uint64_t stated) const {
    uint64_t total = 0;
    for (const auto& spec : specs) total += static_cast<uint64_t>(spec.bytes());
    if (total != stated) {
      throw Error(shown(dir / kIndexName), "key 'metadata.total_size': expected " + std::to_string(total) +
                                               " (the bytes of all tensors), found " + std::to_string(stated));
    }
  }

  TensorView realigned(const TensorView& view) {
    const size_t bytes = view.bytes();
    if (reinterpret_cast<uintptr_t>(view.data) % dtype_size(view.dtype) == 0) return view;
    aligned.push_back(std::make_unique<uint64_t[]>((bytes + 7) / 8));
    std::memcpy(aligned.back().get(), view.data, bytes);
    TensorView copy = view;
    copy.data = aligned.back().get();
    return copy;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::filesystem::path& dir) {
  std::error_code unreadable;
  if (!std::filesystem::is_directory(dir, unreadable)) {
    throw Error(shown(dir), "expected the folder of a checkpoint" + std::string(std::filesystem::exists(dir, unreadable)
                                                                                    ? ", found a file"
                                                                                    : "; there is no such folder"));
  }
  auto state = std::make_unique<State>();
  state->dir = dir;
  state->config = load_config(dir);
  state->specs = inventory(state->config);
  state->names = names_of(state->specs);
  state->load(choose_index(dir));
  return Checkpoint(std::move(state));
}

Checkpoint Checkpoint::in_memory(ModelConfig config, std::string_view name,
                                 const std::function<const void*(const TensorSpec&)>& address) {
  auto state = std::make_unique<State>();
  state->dir = name;
  state->config = std::move(config);
  state->specs = inventory(state->config);
  state->names = names_of(state->specs);
  for (const TensorSpec& spec : state->specs)
    state->views.push_back({address(spec), spec.dtype, spec.rank, spec.shape});
  state->uses.assign(state->specs.size(), State::Use::kOpen);
  return Checkpoint(std::move(state));
}

const ModelConfig& Checkpoint::config() const { return state_->config; }
const std::filesystem::path& Checkpoint::dir() const { return state_->dir; }
const std::vector<TensorSpec>& Checkpoint::tensors() const { return state_->specs; }
const std::vector<std::filesystem::path>& Checkpoint::files() const { return state_->paths; }
const std::vector<std::pair<Part, std::string>>& Checkpoint::ignored() const { return state_->ignored; }

TensorView Checkpoint::take(std::string_view name) {
  const auto at = state_->names.find(name);
  if (at == state_->names.end()) fail(state_->dir, name, "is not part of this model");
  State::Use& use = state_->uses[at->second];
  if (use == State::Use::kTaken) fail(state_->dir, name, "is taken a second time");
  if (use == State::Use::kIgnored) fail(state_->dir, name, "is taken but its part is ignored");
  use = State::Use::kTaken;
  return state_->realigned(state_->views[at->second]);
}

void Checkpoint::ignore(Part part, std::string_view reason) {
  for (const auto& [known, why] : state_->ignored) {
    if (known == part) throw Error(shown(state_->dir), std::string(part_name(part)) + " are ignored a second time");
  }
  state_->ignored.emplace_back(part, reason);
  for (size_t i = 0; i < state_->specs.size(); ++i) {
    State::Use& use = state_->uses[i];
    if (state_->specs[i].part == part && use == State::Use::kOpen) use = State::Use::kIgnored;
  }
}

void Checkpoint::finish() const {
  const auto open = std::find(state_->uses.begin(), state_->uses.end(), State::Use::kOpen);
  if (open == state_->uses.end()) return;
  const auto at = static_cast<size_t>(open - state_->uses.begin());
  fail(state_->dir, state_->specs[at].name,
       "was neither used nor named as ignored (" +
           std::to_string(std::count(state_->uses.begin(), state_->uses.end(), State::Use::kOpen)) + " were not)");
}

}  // namespace mdi
