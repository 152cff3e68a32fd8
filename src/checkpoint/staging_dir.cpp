#include "checkpoint/staging_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "core/error.h"

namespace mdi {

namespace fs = std::filesystem;

namespace {

std::string reason(int error) { return std::strerror(error); }

// "a/b/" and "a/b" are the same folder; its parent and name are needed.
fs::path without_trailing_slash(const fs::path& dir) {
  const fs::path p = fs::absolute(dir).lexically_normal();
  return p.has_filename() ? p : p.parent_path();
}

// The file names that a checkpoint folder is made of. `replace` removes nothing else, whatever DIR is.
bool is_checkpoint_file(const std::string& name) {
  return name == "config.json" || name == "engram_token_map.json" || name == "tokenizer.json" ||
         name == "model.safetensors.index.json" || (name.starts_with("model") && name.ends_with(".safetensors"));
}

void check_replaceable(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (!entry.is_regular_file() || !is_checkpoint_file(entry.path().filename().string())) {
      throw Error(dir.string(), "holds '" + entry.path().filename().string() +
                                    "', which is not part of a checkpoint; it is not replaced");
    }
  }
}

void sync_folder(const fs::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw Error(dir.string(), "could not open: " + reason(errno));
  const int rc = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (rc != 0) throw Error(dir.string(), "could not sync: " + reason(error));
}

}  // namespace

StagingDir::StagingDir(const fs::path& dir, bool replace) : dir_(without_trailing_slash(dir)), replace_(replace) {
  partial_ = dir_;
  partial_ += ".partial";
  try {
    if (fs::exists(dir_)) {
      if (!fs::is_directory(dir_)) throw Error(dir_.string(), "exists and is not a folder");
      if (!fs::is_empty(dir_)) {
        if (!replace) throw Error(dir_.string(), "the folder is not empty (--force replaces a checkpoint)");
        check_replaceable(dir_);
      }
    }
    fs::create_directories(dir_.parent_path());
    fs::create_directory(partial_);
    lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (lock_ < 0) throw Error(partial_.string(), "could not open: " + reason(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      throw Error(partial_.string(), error == EWOULDBLOCK ? "another process is writing this folder now"
                                                          : "could not lock: " + reason(error));
    }
    // The lock is worth something only on the folder that the name means now: the process that had it may just have
    // renamed it.
    struct stat locked = {}, named = {};
    if (::fstat(lock_, &locked) != 0 || ::stat(partial_.c_str(), &named) != 0 || locked.st_ino != named.st_ino ||
        locked.st_dev != named.st_dev) {
      throw Error(partial_.string(), "another process is writing this folder now");
    }
    // What a killed process left.
    check_replaceable(partial_);
    for (const auto& entry : fs::directory_iterator(partial_)) fs::remove(entry.path());
  } catch (const fs::filesystem_error& e) {
    if (lock_ >= 0) ::close(lock_);
    throw Error(e.path1().string(), e.code().message());
  } catch (...) {
    if (lock_ >= 0) ::close(lock_);
    throw;
  }
}

StagingDir::~StagingDir() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }
  if (lock_ >= 0) ::close(lock_);
}

uint64_t StagingDir::free_bytes() const {
  std::error_code error;
  const auto space = fs::space(partial_, error);
  if (error) throw Error(partial_.string(), "could not read the free space: " + error.message());
  return space.available;
}

void StagingDir::commit() {
  sync_folder(partial_);
  // An existing folder changes places with the new one in one step, so that DIR is a whole checkpoint at every moment.
  std::error_code error;
  const bool swap = replace_ && fs::exists(dir_, error) && !fs::is_empty(dir_, error);
  const int rc = ::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, dir_.c_str(), swap ? RENAME_EXCHANGE : 0);
  if (rc != 0) throw Error(dir_.string(), "could not rename the finished folder: " + reason(errno));
  committed_ = true;
  if (swap) fs::remove_all(partial_, error);
  sync_folder(dir_.parent_path());
}

}  // namespace mdi
