#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace mdi {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  std::string message = std::string("could not ") + what + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) message = std::string("the disk is full (could not ") + what + ")";
  throw Error(path.string(), message);
}

void append_number(std::string& out, uint64_t v) { out += std::to_string(v); }

void append_entry(std::string& out, const TensorSpec& t, uint64_t begin) {
  out += nlohmann::json(t.name).dump();
  out += ":{\"dtype\":\"";
  out += dtype_name(t.dtype);
  out += "\",\"shape\":[";
  for (int i = 0; i < t.rank; ++i) {
    if (i > 0) out += ',';
    append_number(out, static_cast<uint64_t>(t.shape[static_cast<size_t>(i)]));
  }
  out += "],\"data_offsets\":[";
  append_number(out, begin);
  out += ',';
  append_number(out, begin + static_cast<uint64_t>(t.bytes()));
  out += "]}";
}

}  // namespace

SafetensorsLayout safetensors_layout(std::span<const TensorSpec> tensors) {
  SafetensorsLayout layout;
  std::string& out = layout.header;
  out.reserve(64 + tensors.size() * 128);
  out.assign(8, '\0');
  out += "{\"__metadata__\":{\"format\":\"pt\"}";
  layout.offsets.reserve(tensors.size());
  uint64_t at = 0;
  for (const TensorSpec& t : tensors) {
    out += ',';
    append_entry(out, t, at);
    layout.offsets.push_back(at);
    at += static_cast<uint64_t>(t.bytes());
  }
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  const uint64_t length = out.size() - 8;
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((length >> (8 * i)) & 255u);
  for (uint64_t& offset : layout.offsets) offset += out.size();
  layout.file_size = out.size() + at;
  return layout;
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(path_, "create", errno);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::resize(uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail(path_, "extend", errno);
}

void OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, bytes, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail(path_, "write", errno);
    }
    if (n == 0) fail(path_, "write", ENOSPC);
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void OutputFile::sync() {
  if (::fsync(fd_) != 0) fail(path_, "sync", errno);
}

void OutputFile::close() {
  if (fd_ < 0) return;
  if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "close", errno);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write_at(0, text.data(), text.size());
  file.sync();
  file.close();
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, view] : tensors) {
    specs.push_back({.name = name, .dtype = view.dtype, .rank = view.rank, .shape = view.shape});
  }
  const SafetensorsLayout layout = safetensors_layout(specs);
  OutputFile file(path);
  file.write_at(0, layout.header.data(), layout.header.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    file.write_at(layout.offsets[i], tensors[i].view.data, tensors[i].view.bytes());
  }
  file.close();
}

}  // namespace mdi
