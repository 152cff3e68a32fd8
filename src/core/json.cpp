#include "core/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {
namespace {

using nlohmann::json;

// "[json.exception.parse_error.101] parse error at line 3, column 7: ..." without the library's own prefix.
std::string reason_of(const json::exception& error) {
  std::string_view text = error.what();
  const size_t bracket = text.find("] ");
  if (!text.empty() && text.front() == '[' && bracket != std::string_view::npos) text.remove_prefix(bracket + 2);
  return printable(text, 240);
}

// Stands between the library's event interface and ours, and holds the limits.
class Adapter : public nlohmann::json_sax<json> {
 public:
  Adapter(std::string_view where, JsonLimits limits, JsonEvents& events)
      : where_(where), limits_(limits), events_(events) {}

  bool null() override { return one(), events_.on_null(), true; }
  bool boolean(bool value) override { return one(), events_.on_bool(value), true; }
  bool number_integer(number_integer_t value) override { return one(), events_.on_integer(value), true; }
  bool number_unsigned(number_unsigned_t value) override { return one(), events_.on_unsigned(value), true; }
  bool number_float(number_float_t value, const string_t& digits) override {
    one();
    // The library hands integers beyond 64 bits on as rounded reals.
    if (digits.find_first_of(".eE") == string_t::npos) {
      if (events_.on_wide_integer(digits)) return true;
      throw Error(where_, "integer " + printable(digits, 40) + " does not fit 64 bits");
    }
    if (!std::isfinite(value)) throw Error(where_, "number " + printable(digits, 40) + " is too large");
    return events_.on_real(value), true;
  }
  bool string(string_t& value) override { return one(), events_.on_string(value), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return enter(), events_.on_object(), true; }
  bool key(string_t& value) override { return events_.on_key(value), true; }
  bool end_object() override { return --depth_, events_.on_object_end(), true; }
  bool start_array(size_t) override { return enter(), events_.on_array(), true; }
  bool end_array() override { return --depth_, events_.on_array_end(), true; }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    throw Error(where_, "not valid JSON: " + reason_of(error));
  }

 private:
  void one() {
    if (++values_ > limits_.max_values) {
      throw Error(where_, "more than " + std::to_string(limits_.max_values) + " JSON values");
    }
  }
  void enter() {
    one();
    if (++depth_ > limits_.max_depth) {
      throw Error(where_, "JSON nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
  }

  std::string_view where_;
  JsonLimits limits_;
  int depth_ = 0;
  int64_t values_ = 0;
  JsonEvents& events_;
};

// Builds the tree, refusing a key that its object already has.
class TreeBuilder : public JsonEvents {
 public:
  explicit TreeBuilder(std::string_view where) : where_(where) {}
  json take() { return std::move(root_); }

  void on_object() override { open_.push_back(&place(json::object())); }
  void on_key(std::string& key) override {
    const auto [slot, fresh] = open_.back()->get_ref<json::object_t&>().try_emplace(key);
    if (!fresh) throw Error(where_, "key '" + printable(key) + "' appears twice in one object");
    slot_ = &slot->second;
  }
  void on_object_end() override { open_.pop_back(); }
  void on_array() override { open_.push_back(&place(json::array())); }
  void on_array_end() override { open_.pop_back(); }
  void on_string(std::string& value) override { place(std::move(value)); }
  void on_integer(int64_t value) override { place(value); }
  void on_unsigned(uint64_t value) override { place(value); }
  void on_real(double value) override { place(value); }
  void on_bool(bool value) override { place(value); }
  void on_null() override { place(nullptr); }

 private:
  // An open container stays where it is while it is filled: its parent gets no further element until it closes.
  json& place(json value) {
    json* target = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& items = open_.back()->get_ref<json::array_t&>();
      items.emplace_back();
      target = &items.back();
    } else if (!open_.empty()) {
      target = slot_;
    }
    *target = std::move(value);
    return *target;
  }

  std::string_view where_;
  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;
};

}  // namespace

void read_json(std::string_view text, std::string_view where, JsonLimits limits, JsonEvents& events) {
  if (text.size() > limits.max_bytes) {
    throw Error(where, "JSON text of " + std::to_string(text.size()) + " bytes, more than the " +
                           std::to_string(limits.max_bytes) + " allowed");
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF") throw Error(where, "not valid JSON: it starts with a byte order mark");
  // The library takes a zero byte for the end of the text and would not see what stands behind it.
  if (text.find('\0') != std::string_view::npos) throw Error(where, "not valid JSON: it holds a zero byte");
  Adapter adapter(where, limits, events);
  json::sax_parse(text.begin(), text.end(), &adapter);
}

json parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  TreeBuilder builder(where);
  read_json(text, where, limits, builder);
  return builder.take();
}

}  // namespace mdi
