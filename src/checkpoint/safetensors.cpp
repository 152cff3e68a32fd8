#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"

namespace mdi {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is used as it lies");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr uint64_t kMaxElements = uint64_t{1} << 60;

std::string text(uint64_t value) { return std::to_string(value); }

// Follows the header's JSON and knows at every point what may come. Nothing is kept but the entries themselves.
class HeaderReader : public JsonEvents {
 public:
  HeaderReader(std::string_view where, SafetensorsHeader& out) : where_(where), out_(out) {}

  void on_object() override {
    if (state_ == State::kStart) return enter(State::kTop);
    if (state_ != State::kTop) refuse("an object");
    enter(key_ == "__metadata__" ? State::kMetadata : State::kTensor);
    if (state_ == State::kMetadata) return once(seen_metadata_);
    out_.tensors.emplace_back().name = std::move(key_);
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
  }

  void on_key(std::string& key) override { key_ = std::move(key); }

  void on_object_end() override {
    if (state_ != State::kTensor) return enter(state_ == State::kTop ? State::kDone : State::kTop);
    if (!seen_dtype_) fail("key 'dtype' is missing");
    if (!seen_shape_) fail("key 'shape' is missing");
    if (!seen_offsets_) fail("key 'data_offsets' is missing");
    enter(State::kTop);
  }

  void on_array() override {
    if (state_ == State::kTensor && key_ == "shape") return once(seen_shape_), enter(State::kShape);
    if (state_ == State::kTensor && key_ == "data_offsets") return once(seen_offsets_), enter(State::kOffsets);
    refuse("a list");
  }

  void on_array_end() override {
    if (state_ == State::kOffsets && offsets_ != 2) fail("expected two data_offsets, found " + text(offsets_));
    offsets_ = 0;
    enter(State::kTensor);
  }

  void on_string(std::string& value) override {
    if (state_ == State::kMetadata) {
      out_.metadata.emplace_back(std::move(key_), std::move(value));
    } else if (state_ == State::kTensor && key_ == "dtype") {
      once(seen_dtype_);
      if (!dtype_from_name(value, tensor().dtype)) fail("unknown dtype '" + printable(value, 40) + "'");
    } else {
      refuse("the string '" + printable(value, 40) + "'");
    }
  }

  void on_unsigned(uint64_t value) override {
    if (state_ == State::kShape) {
      if (tensor().rank == 4) fail("expected at most 4 dimensions, found more");
      if (value >= kMaxElements) fail("dimension " + text(value) + " is too large");
      tensor().shape[static_cast<size_t>(tensor().rank++)] = static_cast<int64_t>(value);
    } else if (state_ == State::kOffsets) {
      (offsets_ == 0 ? tensor().begin : tensor().end) = value;
      ++offsets_;
    } else {
      refuse("the number " + text(value));
    }
  }

  void on_integer(int64_t value) override {
    if (value >= 0) return on_unsigned(static_cast<uint64_t>(value));
    refuse("the negative number " + std::to_string(value));
  }
  void on_real(double value) override { refuse("the number " + std::to_string(value)); }
  void on_bool(bool value) override { refuse(value ? "true" : "false"); }
  void on_null() override { refuse("null"); }

 private:
  enum class State : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  void enter(State state) { state_ = state; }
  SafetensorsEntry& tensor() { return out_.tensors.back(); }

  void once(bool& seen) {
    if (seen) fail("key '" + printable(key_, 40) + "' appears twice");
    seen = true;
  }

  [[noreturn]] void fail(const std::string& message) const {
    const bool inside = state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets;
    throw Error(where_, (inside ? "tensor '" + printable(out_.tensors.back().name) + "': " : "header: ") + message);
  }

  [[noreturn]] void refuse(const std::string& found) const {
    switch (state_) {
      case State::kStart:
      case State::kDone:
        fail("expected a JSON object, found " + found);
      case State::kTop:
        fail("expected an object for '" + printable(key_) + "', found " + found);
      case State::kMetadata:
        fail("expected a string for '" + printable(key_) + "' of __metadata__, found " + found);
      case State::kShape:
        fail("expected dimensions that are integers from 0 up, found " + found);
      case State::kOffsets:
        fail("expected data_offsets that are integers from 0 up, found " + found);
      case State::kTensor:
        break;
    }
    if (key_ == "dtype") fail("expected a string for 'dtype', found " + found);
    if (key_ == "shape" || key_ == "data_offsets") fail("expected a list for '" + key_ + "', found " + found);
    fail("expected only the keys dtype, shape and data_offsets, found '" + printable(key_, 40) + "'");
  }

  std::string_view where_;
  SafetensorsHeader& out_;
  State state_ = State::kStart;
  std::string key_;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
  uint64_t offsets_ = 0;
};

[[noreturn]] void fail(std::string_view where, const SafetensorsEntry& entry, const std::string& message) {
  throw Error(where, "tensor '" + printable(entry.name) + "': " + message);
}

void refuse_equal_names(const SafetensorsHeader& header, std::string_view where) {
  std::unordered_set<std::string_view> names(header.tensors.size());
  for (const auto& entry : header.tensors) {
    if (!names.insert(entry.name).second) fail(where, entry, "appears twice in the header");
  }
  names.clear();
  for (const auto& [key, value] : header.metadata) {
    if (!names.insert(key).second) throw Error(where, "header: metadata key '" + printable(key) + "' appears twice");
  }
}

void check_bytes(const SafetensorsEntry& entry, uint64_t data_bytes, std::string_view where) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(where, entry,
         "data_offsets [" + text(entry.begin) + ", " + text(entry.end) + "] are outside of the file's " +
             text(data_bytes) + " bytes of data");
  }
  // A dimension of 0 does not excuse the others: their product is formed all over the program.
  uint64_t elements = 1, count = 1;
  for (int i = 0; i < entry.rank; ++i) {
    const uint64_t size = static_cast<uint64_t>(entry.shape[static_cast<size_t>(i)]);
    if (__builtin_mul_overflow(elements, std::max<uint64_t>(size, 1), &elements) || elements >= kMaxElements) {
      fail(where, entry, "the product of the dimensions is too large");
    }
    count *= size;
  }
  const uint64_t bytes = count * dtype_size(entry.dtype);
  if (bytes != entry.end - entry.begin) {
    fail(where, entry,
         "dtype and shape ask for " + text(bytes) + " bytes, data_offsets give " + text(entry.end - entry.begin));
  }
}

void check_coverage(const SafetensorsHeader& header, uint64_t data_bytes, std::string_view where) {
  uint64_t covered = 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const auto& entry = header.tensors[i];
    if (entry.begin < covered) {
      fail(where, entry, "its bytes overlap those of '" + printable(header.tensors[i - 1].name) + "'");
    }
    if (entry.begin > covered) {
      fail(where, entry, "bytes " + text(covered) + " to " + text(entry.begin) + " before it belong to no tensor");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw Error(where, "the last " + text(data_bytes - covered) + " bytes of the file belong to no tensor");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors(std::string_view file, std::string_view where) {
  if (file.size() < kLengthBytes) {
    throw Error(where, "expected a safetensors file, found only " + text(file.size()) + " bytes");
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    throw Error(where,
                "the header's length of " + text(length) + " bytes is over the limit of " + text(kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    throw Error(where, "the header's length of " + text(length) + " bytes is beyond the end of the file (" +
                           text(file.size()) + " bytes)");
  }
  const std::string_view json = file.substr(kLengthBytes, length);
  if (json.empty() || json.front() != '{') throw Error(where, "expected a header that starts with '{'");
  if (const size_t last = json.find_last_not_of(' '); json[last] != '}') {
    throw Error(where, "expected a header that ends with '}' and spaces");
  }

  SafetensorsHeader header;
  header.data_start = kLengthBytes + length;
  HeaderReader reader(where, header);
  read_json(json, where, {.max_bytes = kMaxHeaderBytes, .max_depth = 4}, reader);

  refuse_equal_names(header, where);
  const uint64_t data_bytes = file.size() - header.data_start;
  for (const auto& entry : header.tensors) check_bytes(entry, data_bytes, where);
  // Empty tensors come before the one that starts at the same byte.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const auto& a, const auto& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  check_coverage(header, data_bytes, where);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.text(), printable(path.string(), 400))) {
  by_name_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

TensorView SafetensorsFile::view(const SafetensorsEntry& entry) const {
  return {file_.data() + header_.data_start + entry.begin, entry.dtype, entry.rank, entry.shape};
}

TensorView SafetensorsFile::tensor(std::string_view name) const {
  const auto at = by_name_.find(name);
  if (at == by_name_.end()) {
    throw Error(printable(path().string(), 400), "there is no tensor '" + printable(name) + "'");
  }
  return view(header_.tensors[at->second]);
}

}  // namespace mdi
