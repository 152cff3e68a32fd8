// One file of stored tensors, which remembers what was asked of it: what nothing compared is reported, not forgotten.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace mdi::golden {

inline constexpr int64_t kAnySize = -1;        // at least 1
inline constexpr int64_t kAnySizeOrNone = -2;  // at least 0

class GoldenFile {
 public:
  // `label` names the file in errors. Throws mdi::Error when the file is not well-formed safetensors.
  GoldenFile(const std::filesystem::path& path, std::string label);
  ~GoldenFile();
  GoldenFile(GoldenFile&&) noexcept;

  bool has(std::string_view name) const;
  // Marks the tensor as used. Throws mdi::Error naming the tensor when it is missing or of another dtype or shape.
  TensorView get(std::string_view name);
  TensorView get(std::string_view name, DType dtype, std::initializer_list<int64_t> shape);
  // The same without marking it.
  TensorView peek(std::string_view name) const;
  void mark_used(std::string_view name);

  const std::string& label() const;
  std::vector<std::string> names() const;   // ascending
  std::vector<std::string> unused() const;  // ascending

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mdi::golden
