// A file mapped read-only into memory. Pages come from the page cache when they are touched; nothing is copied.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace mdi {

class MappedFile {
 public:
  MappedFile() = default;
  // Maps the whole file. Throws mdi::Error naming the file when it is missing, unreadable or not a regular file. A file
  // of no bytes is legal: size() is 0 and data() null. The file must not be shortened while it is mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mdi
