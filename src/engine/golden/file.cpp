#include "engine/golden/file.h"

#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace mdi::golden {

struct GoldenFile::State {
  SafetensorsFile file;
  std::string label;
  struct Entry {
    TensorView view;
    std::unique_ptr<std::byte[]> copy;  // tensors of a file need not be aligned for their dtype
    bool used = false;
  };
  std::map<std::string, Entry, std::less<>> entries;

  State(const std::filesystem::path& path, std::string name) : file(path), label(std::move(name)) {
    for (const SafetensorsEntry& e : file.header().tensors) entries[e.name].view = file.view(e);
  }

  Entry& find(std::string_view name) {
    const auto found = entries.find(name);
    if (found == entries.end()) throw Error(label, "expected a tensor '" + std::string(name) + "', found none");
    Entry& e = found->second;
    if (e.copy == nullptr) {
      e.copy = std::make_unique<std::byte[]>(e.view.bytes() + 1);
      if (e.view.bytes() > 0) std::memcpy(e.copy.get(), e.view.data, e.view.bytes());
      e.view.data = e.copy.get();
    }
    return e;
  }
};

GoldenFile::GoldenFile(const std::filesystem::path& path, std::string label)
    : state_(std::make_unique<State>(path, std::move(label))) {}
GoldenFile::~GoldenFile() = default;
GoldenFile::GoldenFile(GoldenFile&&) noexcept = default;

bool GoldenFile::has(std::string_view name) const { return state_->entries.find(name) != state_->entries.end(); }

TensorView GoldenFile::peek(std::string_view name) const { return state_->find(name).view; }

TensorView GoldenFile::get(std::string_view name) {
  State::Entry& e = state_->find(name);
  e.used = true;
  return e.view;
}

TensorView GoldenFile::get(std::string_view name, DType dtype, std::initializer_list<int64_t> shape) {
  const TensorView t = get(name);
  bool fits = t.dtype == dtype && t.rank == static_cast<int>(shape.size());
  std::string wanted = std::string(dtype_name(dtype)) + " [";
  size_t axis = 0;
  for (int64_t n : shape) {
    if (fits) fits = n == kAnySize ? t.shape[axis] > 0 : n == kAnySizeOrNone || t.shape[axis] == n;
    wanted += (axis == 0 ? "" : ", ") + (n < 0 ? std::string(n == kAnySize ? "1.." : "0..") : std::to_string(n));
    ++axis;
  }
  if (!fits) {
    throw Error(state_->label, "tensor '" + std::string(name) + "': expected " + wanted + "], found " +
                                   std::string(dtype_name(t.dtype)) + " " + shape_text(t));
  }
  return t;
}

void GoldenFile::mark_used(std::string_view name) {
  const auto found = state_->entries.find(name);
  if (found != state_->entries.end()) found->second.used = true;
}

const std::string& GoldenFile::label() const { return state_->label; }

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state_->entries) names.push_back(name);
  return names;
}

std::vector<std::string> GoldenFile::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state_->entries) {
    if (!entry.used) names.push_back(name);
  }
  return names;
}

}  // namespace mdi::golden
