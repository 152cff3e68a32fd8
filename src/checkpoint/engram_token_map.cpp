#include "checkpoint/engram_token_map.h"

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/engram_multipliers.h"
#include "checkpoint/engram_primes.h"
#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"

namespace mdi {

namespace {

using nlohmann::json;

const json& member(const json& root, const std::string& where, const char* key) {
  const auto it = root.find(key);
  if (it == root.end()) throw Error(where, std::string("missing key '") + key + "'");
  return *it;
}

int64_t integer(const json& value, const std::string& where, const std::string& key) {
  if (!value.is_number_integer()) throw Error(where, "key '" + key + "': expected an integer");
  return value.get<int64_t>();
}

void expect_equal(const std::string& where, const std::string& key, int64_t found, int64_t expected) {
  if (found == expected) return;
  throw Error(where, "key '" + key + "': expected " + std::to_string(expected) + " by config.json, found " +
                         std::to_string(found));
}

// The optional repetition of what follows from the configuration; a file made for another model differs here.
void check_hash_parameters(const json& root, const std::string& where, const ModelConfig& config) {
  const auto differs = [&root](const char* key, const json& value) { return root.contains(key) && root[key] != value; };
  if (differs("multipliers", engram_multipliers(config))) {
    throw Error(where, "key 'multipliers' does not fit config.json");
  }
  if (differs("primes", engram_primes(config))) throw Error(where, "key 'primes' does not fit config.json");
}

}  // namespace

std::vector<int32_t> load_engram_token_map(const std::filesystem::path& file, const ModelConfig& config) {
  const std::string where = file.filename().string();
  const MappedFile mapped(file);
  const json root = parse_json(mapped.text(), where, {.max_bytes = size_t{64} << 20, .max_depth = 8});
  if (!root.is_object()) throw Error(where, "expected an object");

  expect_equal(where, "compressed_vocab_size",
               integer(member(root, where, "compressed_vocab_size"), where, "compressed_vocab_size"),
               config.engram_compressed_vocab_size);
  const json& list = member(root, where, "token_map");
  if (!list.is_array()) throw Error(where, "key 'token_map': expected an array");
  if (list.size() != static_cast<size_t>(config.vocab_size)) {
    throw Error(where, "key 'token_map': expected " + std::to_string(config.vocab_size) +
                           " entries (vocab_size), found " + std::to_string(list.size()));
  }
  std::vector<int32_t> map;
  map.reserve(list.size());
  for (const json& entry : list) {
    const std::string key = "token_map[" + std::to_string(map.size()) + "]";
    const int64_t id = integer(entry, where, key);
    if (id < 0 || id >= config.engram_compressed_vocab_size) {
      throw Error(where, "key '" + key + "': " + std::to_string(id) + " is not below compressed_vocab_size " +
                             std::to_string(config.engram_compressed_vocab_size));
    }
    map.push_back(static_cast<int32_t>(id));
  }
  if (const auto it = root.find("compressed_pad_id"); it != root.end()) {
    expect_equal(where, "compressed_pad_id", integer(*it, where, "compressed_pad_id"),
                 map[static_cast<size_t>(config.engram_pad_id)]);
  }
  check_hash_parameters(root, where, config);
  return map;
}

}  // namespace mdi
