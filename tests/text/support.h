// The tokenizers and cases that the tests of this room share.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace mdi::test {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(path, "cannot open");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::string data_path(const std::string& name) { return MDI_SOURCE_DIR "/tests/data/tokenizer/" + name; }
inline std::string unpacked_path(const std::string& name) { return MDI_TEST_DATA_DIR "/tokenizer/" + name; }

inline std::vector<nlohmann::json> read_lines(const std::string& name) {
  std::ifstream in(data_path(name));
  if (!in) throw Error(name, "cannot open");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

inline const Tokenizer& v3_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(unpacked_path("tokenizer.json"));
  return tokenizer;
}

// The V3 file with its added tokens replaced by V4.1's.
inline const Tokenizer& v41_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::string json = read_file(unpacked_path("tokenizer.json"));
    const std::string key = "\"added_tokens\": ";
    const size_t begin = json.find(key) + key.size();
    const size_t end = json.find("\"normalizer\"", begin);
    json.replace(begin, end - begin, read_file(data_path("added_tokens_v41.json")) + ",");
    return Tokenizer::from_json(json, "tokenizer_v41.json");
  }();
  return tokenizer;
}

// A tokenizer.json with GPT-2's pre-tokenizer: the 256 bytes under their own values as ids, then what `merges` makes of
// them (pairs such as "h e" in the byte-level alphabet), then an added token <end>.
inline nlohmann::ordered_json small_file(const std::vector<std::string>& merges) {
  nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[to_byte_alphabet({&c, 1})] = byte;
  }
  for (const std::string& merge : merges) {
    std::string joined = merge;
    joined.erase(joined.find(' '), 1);
    if (!vocab.contains(joined)) vocab[joined] = vocab.size();
  }
  const nlohmann::ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {{{"id", vocab.size()}, {"content", "<end>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace mdi::test
