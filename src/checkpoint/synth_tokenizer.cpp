#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/synth.h"

namespace mdi {

namespace {

constexpr int kFirstByte = 3;  // behind the begin, end and padding tokens
constexpr const char* kMarkers[] = {"<｜System｜>", "<｜User｜>", "<｜Assistant｜>",      "<think>",
                                    "</think>",     "｜DSML｜",   "<｜latest_reminder｜>"};

// A byte as tokenizer.json spells it: itself where it is printable, else one of the characters from U+0100 on.
std::string byte_spelling(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b != 173); };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

std::string synthetic_tokenizer(const ModelConfig& config) {
  const int markers = static_cast<int>(std::size(kMarkers));
  const int fixed = kFirstByte + 256 + markers;
  // The placeholders of images and drafts lie behind the markers; a vocabulary without room for that has no tokenizer.
  if (config.vocab_size < fixed + 2 || config.vocab_size > 65536) return {};
  if (config.bos_token_id != 0 || config.eos_token_id != 1 || config.pad_token_id != 2) return {};
  if (config.image_token_id >= 0 && config.image_token_id < fixed) return {};

  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  const auto add = [&added](int id, const std::string& content, bool special) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  };
  add(0, "<｜begin▁of▁sentence｜>", true);
  add(1, "<｜end▁of▁sentence｜>", true);
  add(2, "<｜▁pad▁｜>", true);
  for (int i = 0; i < markers; ++i) add(kFirstByte + 256 + i, kMarkers[i], false);
  for (int id = fixed; id < config.vocab_size; ++id) {
    const bool image = id == config.image_token_id;
    add(id, image ? "<｜deepseek_image｜>" : "<｜unused_" + std::to_string(id) + "｜>", !image);
  }
  nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_spelling(byte)] = kFirstByte + byte;

  nlohmann::ordered_json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = std::move(added);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  root["post_processor"] = nullptr;
  root["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", std::move(vocab)},
                   {"merges", nlohmann::ordered_json::array()}};
  return root.dump(1) + "\n";
}

}  // namespace mdi
