// Writing safetensors files of any size: the header first, then bytes at any place and in any order, or nothing at all,
// which leaves a hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/inventory.h"
#include "core/tensor.h"

namespace mdi {

// Where everything of one file goes.
struct SafetensorsLayout {
  std::string header;             // the 8 length bytes and the JSON, padded with spaces to a multiple of 8
  std::vector<uint64_t> offsets;  // of each tensor, from the start of the file
  uint64_t file_size = 0;
};

// The tensors in the order given, one right after the other. Put wide elements first and all are aligned.
SafetensorsLayout safetensors_layout(std::span<const TensorSpec> tensors);

// A file that is being written. Every call throws mdi::Error naming the file; a full disk is said as such.
class OutputFile {
 public:
  // Creates or empties the file.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  // Makes the file this long; what is never written reads as zeros and takes no room on disk.
  void resize(uint64_t bytes);
  // May be called from several threads at once, for ranges that do not overlap.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  // Returns when the data are on the disk.
  void sync();
  // Closes, and says what close() says. The destructor closes too, silently.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// A whole small file at once, synced.
void write_file(const std::filesystem::path& path, std::string_view text);

struct NamedTensor {
  std::string name;
  TensorView view;
};

// A whole safetensors file of tensors that are in memory. Throws mdi::Error naming the file.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

}  // namespace mdi
