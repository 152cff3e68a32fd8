// A folder that appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mdi {

// Files are written into `DIR.partial`, next to DIR; commit() makes them durable and renames the folder. A process that
// is killed leaves only `DIR.partial`, which the next one removes; one that fails removes it itself.
class StagingDir {
 public:
  // Throws mdi::Error when DIR is not empty and `replace` is false, when `replace` would remove anything but a
  // checkpoint's files, or when another process is writing the same DIR now.
  StagingDir(const std::filesystem::path& dir, bool replace);
  ~StagingDir();
  StagingDir(const StagingDir&) = delete;
  StagingDir& operator=(const StagingDir&) = delete;

  const std::filesystem::path& path() const { return partial_; }
  // Bytes that can still be written there.
  uint64_t free_bytes() const;
  void commit();

 private:
  std::filesystem::path dir_, partial_;
  bool replace_ = false;
  bool committed_ = false;
  int lock_ = -1;  // the folder itself, locked for as long as this process writes it
};

}  // namespace mdi
