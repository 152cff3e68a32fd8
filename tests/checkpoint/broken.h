// Ways to break a copy of the golden checkpoint, and the check that opening it says so.
#pragma once

#include "checkpoint/checkpoint.h"
#include "support.h"

namespace mdi::test {

inline constexpr const char* kShard1 = "model-00001-of-00003.safetensors";
inline constexpr const char* kShard2 = "model-00002-of-00003.safetensors";
inline constexpr const char* kShard3 = "model-00003-of-00003.safetensors";
inline constexpr const char* kIndex = "model.safetensors.index.json";
inline constexpr const char* kWkv = "layers.0.attn.wkv.weight";  // F8_E4M3 [64, 128], in the first shard
inline constexpr const char* kHead = "head.weight";              // BF16 [512, 128], in the second

struct Broken {
  const char* what;
  std::function<void(const Path&)> break_it;
  std::vector<std::string> words;
};

// -- ways to break one file ------------------------------------------------------------------------------------------

inline std::function<void(const Path&)> bytes(const char* file, std::function<void(std::string&)> edit) {
  return [=](const Path& dir) { edit_bytes(dir / file, edit); };
}
inline std::function<void(const Path&)> json(const char* file, std::function<void(Json&)> edit) {
  return [=](const Path& dir) { edit_json(dir / file, edit); };
}
inline std::function<void(const Path&)> shard(const char* file, std::function<void(Safetensors&)> edit) {
  return [=](const Path& dir) { edit_safetensors(dir / file, edit); };
}
inline std::function<void(const Path&)> tensor(const char* file, const char* name, std::function<void(Json&)> edit) {
  return shard(file, [=](Safetensors& s) { edit(s.header[name]); });
}
// Changes the header as a text, for what a JSON tree cannot say.
inline std::function<void(const Path&)> header_text(const char* file, std::function<void(std::string&)> edit) {
  return [=](const Path& dir) {
    const Safetensors s = split_safetensors(dir / file);
    std::string text = s.header.dump();
    edit(text);
    write_file(dir / file, safetensors_bytes(text, s.data));
  };
}
inline std::function<void(const Path&)> header_length(const char* file, uint64_t length) {
  return bytes(file, [=](std::string& b) { std::memcpy(b.data(), &length, sizeof(length)); });
}

inline void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

inline void rename_key(Json& object, const std::string& from, const std::string& to) {
  object[to] = object.at(from);
  object.erase(from);
}

inline void swap_places(Json& a, Json& b) { std::swap(a["data_offsets"], b["data_offsets"]); }

// Breaks a fresh copy in each of the ways and compares what opening it says.
inline void expect_errors(const std::vector<Broken>& cases) {
  for (const auto& broken : cases) {
    SCOPED_TRACE(broken.what);
    const ScratchDir dir;
    link_golden("tiny-text", dir.path());
    broken.break_it(dir.path());
    expect_message(error_of([&] { Checkpoint::open(dir.path()); }), broken.words);
  }
}

}  // namespace mdi::test
