// One safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes (spec checkpoint.md).
//
// Reading is strict. The header must describe the file's bytes exactly: every byte behind it belongs to one tensor, in
// the size that dtype and shape ask for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/mapped_file.h"
#include "core/tensor.h"

namespace mdi {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;  // 0..4; 0 is a single element
  std::array<int64_t, 4> shape{};
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by position in the data
  std::vector<std::pair<std::string, std::string>> metadata;
  uint64_t data_start = 0;  // bytes from the start of the file
};

// Reads the header of `file`, the whole file's bytes. Throws mdi::Error naming `where` and the tensor.
SafetensorsHeader parse_safetensors(std::string_view file, std::string_view where);

// A mapped file with its header. The views point into the mapping.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  TensorView view(const SafetensorsEntry& entry) const;
  bool contains(std::string_view name) const { return by_name_.count(name) != 0; }
  // Throws mdi::Error naming the file if there is no such tensor.
  TensorView tensor(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys point into header_
};

}  // namespace mdi
