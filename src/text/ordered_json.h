// JSON whose order matters: trees that keep their keys' order, and the spelling of Python's json.dumps, which the
// model was trained on (spec chat-format.md section 4).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/json.h"

namespace mdi {

// An integer beyond 64 bits is kept as a `binary` value holding its digits: no text can make a binary value otherwise.
using OrderedJson = nlohmann::ordered_json;

// Leaves null. The library's destructor allocates as much as a tree has values, and ends the process where memory is
// short; this allocates nothing. Recursive: for trees of bounded depth.
void dissolve(OrderedJson& tree) noexcept;

// Owns a tree of somebody else's text, however large.
class JsonTree {
 public:
  explicit JsonTree(OrderedJson value) noexcept : value_(std::move(value)) {}
  ~JsonTree() { dissolve(value_); }
  JsonTree(const JsonTree&) = delete;
  JsonTree& operator=(const JsonTree&) = delete;

  OrderedJson& operator*() { return value_; }
  const OrderedJson& operator*() const { return value_; }
  const OrderedJson* operator->() const { return &value_; }
  OrderedJson take() { return std::exchange(value_, nullptr); }

 private:
  OrderedJson value_;
};

// A copy that is a JsonTree's also where memory ends in the middle of it.
OrderedJson copy_json(const OrderedJson& value);

// Builds a tree in time linear in the text. Of equal keys in one object the last value counts, at the first's place.
class OrderedJsonBuilder : public JsonEvents {
 public:
  OrderedJsonBuilder() = default;
  ~OrderedJsonBuilder() override { dissolve(root_); }
  OrderedJsonBuilder(const OrderedJsonBuilder&) = delete;
  OrderedJsonBuilder& operator=(const OrderedJsonBuilder&) = delete;

  OrderedJson take() { return std::move(root_); }

  void on_object() override;
  void on_key(std::string& key) override;
  void on_object_end() override;
  void on_array() override;
  void on_array_end() override;
  void on_string(std::string& value) override { place(std::move(value)); }
  void on_integer(int64_t value) override { place(value); }
  void on_unsigned(uint64_t value) override { place(value); }
  bool on_wide_integer(const std::string& digits) override;
  void on_real(double value) override { place(value); }
  void on_bool(bool value) override { place(value); }
  void on_null() override { place(nullptr); }

 private:
  // An open container; `places` is filled once an object has so many keys that a scan would cost more.
  struct Open {
    OrderedJson* node;
    std::unordered_map<std::string, size_t> places;
  };
  OrderedJson& place(OrderedJson value);
  size_t find_key(Open& open, const std::string& key);

  OrderedJson root_;
  std::vector<Open> open_;
  OrderedJson* slot_ = nullptr;
};

// Throws mdi::Error(where, ...), see core/json.h.
OrderedJson parse_ordered_json(std::string_view text, std::string_view where, JsonLimits limits = {});

// json.dumps(value, ensure_ascii=False): ", " and ": " between things, real numbers as Python prints them.
std::string python_json(const OrderedJson& value);
void append_python_json_string(std::string_view text, std::string& out);         // with its quotes
void append_python_json_string_inside(std::string_view text, std::string& out);  // without them

}  // namespace mdi
