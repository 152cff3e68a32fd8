#include "checkpoint/safetensors_index.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"

namespace mdi {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxShards = 4096;

bool is_plain_file_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
         name.find_first_of("/\\") == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

class IndexReader : public JsonEvents {
 public:
  IndexReader(std::string_view where, SafetensorsIndex& out) : where_(where), out_(out) {}

  void on_object() override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && key_ == "weight_map") {
      once(seen_map_);
      state_ = State::kMap;
    } else if (state_ == State::kTop && key_ == "metadata") {
      once(seen_metadata_);
      state_ = State::kMetadata;
    } else {
      refuse("an object");
    }
  }
  void on_key(std::string& key) override {
    key_ = std::move(key);
    if (state_ == State::kTop && key_ != "weight_map" && key_ != "metadata") {
      fail("expected only the keys metadata and weight_map, found '" + printable(key_) + "'");
    }
  }
  void on_object_end() override { state_ = state_ == State::kTop ? State::kDone : State::kTop; }
  void on_string(std::string& value) override {
    if (state_ == State::kMap) {
      const uint32_t where_it_is = shard(value);
      out_.tensors.push_back({std::move(key_), where_it_is});
    } else {
      scalar("the string '" + printable(value, 40) + "'");
    }
  }
  void on_unsigned(uint64_t value) override {
    if (state_ == State::kMetadata && key_ == "total_size") {
      if (out_.total_size) fail("key 'total_size' appears twice");
      out_.total_size = value;
    } else {
      scalar("the number " + std::to_string(value));
    }
  }
  void on_integer(int64_t value) override { scalar("the number " + std::to_string(value)); }
  void on_real(double value) override { scalar("the number " + std::to_string(value)); }
  void on_bool(bool value) override { scalar(value ? "true" : "false"); }
  void on_null() override { scalar("null"); }
  void on_array() override { refuse("a list"); }
  void on_array_end() override {}

  bool seen_map() const { return seen_map_; }

 private:
  enum class State : uint8_t { kStart, kTop, kMetadata, kMap, kDone };

  [[noreturn]] void fail(const std::string& message) const { throw Error(where_, message); }

  [[noreturn]] void refuse(const std::string& found) const {
    if (state_ == State::kMap) fail("tensor '" + printable(key_) + "': expected a file name, found " + found);
    if (state_ == State::kMetadata) fail("key 'metadata." + printable(key_) + "': expected a number, found " + found);
    if (state_ == State::kTop) fail("key '" + key_ + "': expected an object, found " + found);
    fail("expected a JSON object, found " + found);
  }

  // Metadata other than the size is for people.
  void scalar(const std::string& found) const {
    if (state_ != State::kMetadata || key_ == "total_size") refuse(found);
  }

  void once(bool& seen) const {
    if (seen) fail("key '" + key_ + "' appears twice");
    seen = true;
  }

  uint32_t shard(const std::string& name) {
    const auto known = shards_.find(name);
    if (known != shards_.end()) return known->second;
    if (!is_plain_file_name(name)) {
      fail("tensor '" + printable(key_) + "': expected a plain file name that ends in " + ".safetensors, found '" +
           printable(name) + "'");
    }
    if (out_.shards.size() == kMaxShards) fail("more than " + std::to_string(kMaxShards) + " files are named");
    out_.shards.push_back(name);
    return shards_.emplace(name, static_cast<uint32_t>(out_.shards.size() - 1)).first->second;
  }

  std::string_view where_;
  SafetensorsIndex& out_;
  State state_ = State::kStart;
  std::string key_;
  bool seen_map_ = false, seen_metadata_ = false;
  std::unordered_map<std::string, uint32_t> shards_;
};

void sort_shards(SafetensorsIndex& index) {
  std::vector<uint32_t> order(index.shards.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return index.shards[a] < index.shards[b]; });
  std::vector<uint32_t> position(order.size());
  std::vector<std::string> sorted(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) {
    position[order[i]] = i;
    sorted[i] = std::move(index.shards[order[i]]);
  }
  index.shards = std::move(sorted);
  for (auto& place : index.tensors) place.shard = position[place.shard];
}

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, std::string_view where) {
  SafetensorsIndex index;
  IndexReader reader(where, index);
  read_json(text, where, {.max_bytes = kMaxIndexBytes, .max_depth = 3}, reader);
  if (!reader.seen_map()) throw Error(where, "key 'weight_map' is missing");
  std::unordered_set<std::string_view> names(index.tensors.size());
  for (const auto& place : index.tensors) {
    if (!names.insert(place.tensor).second) {
      throw Error(where, "tensor '" + printable(place.tensor) + "' appears twice in weight_map");
    }
  }
  sort_shards(index);
  return index;
}

}  // namespace mdi
