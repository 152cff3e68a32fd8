// What the checkpoint tests share: a scratch folder, the golden checkpoints, and ways to damage copies of them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace mdi::test {

using Path = std::filesystem::path;
using Json = nlohmann::json;

inline Path data_dir() { return Path(MDI_SOURCE_DIR) / "tests" / "data"; }
inline Path golden(const char* name) { return data_dir() / "golden" / name; }

inline std::string read_file(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::string bytes(std::filesystem::file_size(path), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

inline void write_file(const Path& path, std::string_view bytes) {
  std::filesystem::remove(path);  // never write through a link into the golden data
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class ScratchDir {
 public:
  ScratchDir() {
    static int count = 0;
    path_ = Path(testing::TempDir()) / ("mdi_checkpoint_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const Path& path() const { return path_; }

 private:
  Path path_;
};

// Fills `dir` with links to the checkpoint's files; the helpers below replace a link by a changed copy.
inline void link_golden(const char* name, const Path& dir) {
  for (const auto& file : std::filesystem::directory_iterator(golden(name))) {
    if (file.is_regular_file()) std::filesystem::create_symlink(file.path(), dir / file.path().filename());
  }
}

inline void edit_bytes(const Path& path, const std::function<void(std::string&)>& edit) {
  std::string bytes = read_file(path);
  edit(bytes);
  write_file(path, bytes);
}

inline void edit_json(const Path& path, const std::function<void(Json&)>& edit) {
  Json json = Json::parse(read_file(path));
  edit(json);
  write_file(path, json.dump());
}

struct Safetensors {
  Json header;
  std::string data;
};

inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(header).append(data);
}

inline Safetensors split_safetensors(const Path& path) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return {Json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
}

inline void edit_safetensors(const Path& path, const std::function<void(Safetensors&)>& edit) {
  Safetensors file = split_safetensors(path);
  edit(file);
  write_file(path, safetensors_bytes(file.header.dump(), file.data));
}

// The message that `action` throws as an mdi::Error. Anything else that it throws ends the test.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

// One line of reasonable length that holds all the words.
inline void expect_message(const std::string& message, const std::vector<std::string>& words) {
  for (const auto& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u) << message;
}

}  // namespace mdi::test
