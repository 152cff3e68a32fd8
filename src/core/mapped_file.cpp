#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int code) {
  throw Error(printable(path.string(), 400), std::string(what) + ": " + std::generic_category().message(code));
}

// Closed on every way out; the mapping outlives the descriptor.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail(path, "cannot open the file", errno);
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail(path, "cannot read the file's size", errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(printable(path.string(), 400),
                S_ISDIR(info.st_mode) ? "expected a file, found a folder" : "expected a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (mapping == MAP_FAILED) fail(path, "cannot map the file", errno);
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace mdi
