// Strict JSON: what a lenient reader would guess about is an error here.
//
// Refused, with one mdi::Error naming `where`: invalid syntax or UTF-8, a byte order mark, anything behind the value,
// two equal keys in one object, nesting, a text or a number of values beyond a limit, integers that do not fit 64 bits
// and reals that do not fit a double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace mdi {

struct JsonLimits {
  size_t max_bytes = size_t{1} << 20;
  int max_depth = 32;  // of arrays and objects inside one another
  int64_t max_values = INT64_MAX;
};

// Reads a text into a tree. The tree may take some 20 times the text's bytes: keep max_bytes small for foreign input,
// or use read_json.
nlohmann::json parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});

// What read_json calls, in the order of the text. A handler refuses a value by throwing; equal keys are its own to
// check.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void on_object() = 0;
  virtual void on_key(std::string& key) = 0;
  virtual void on_object_end() = 0;
  virtual void on_array() = 0;
  virtual void on_array_end() = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_integer(int64_t value) = 0;
  virtual void on_unsigned(uint64_t value) = 0;  // every integer that is not negative
  // An integer beyond 64 bits, as it is written. A handler that takes it returns true; otherwise it is an error.
  virtual bool on_wide_integer(const std::string& /*digits*/) { return false; }
  virtual void on_real(double value) = 0;
  virtual void on_bool(bool value) = 0;
  virtual void on_null() = 0;
};

// Reads a text without building a tree: memory stays with what the handler keeps.
void read_json(std::string_view text, std::string_view where, JsonLimits limits, JsonEvents& events);

}  // namespace mdi
