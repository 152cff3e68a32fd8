// Ranges of options, said in one way: "--queue: expected 1 or more, found 0".
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/printable.h"

namespace mdi {

inline std::string expected_found(const std::string& expected, const std::string& found) {
  return "expected " + expected + ", found " + (found.empty() ? "nothing" : printable(found, 60));
}

// A whole number of low to high; without a high one as far as the option's type goes.
inline CLI::Validator whole(int64_t low, int64_t high = std::numeric_limits<int32_t>::max()) {
  const bool open = high == std::numeric_limits<int32_t>::max();
  const std::string range = std::to_string(low) + (open ? " or more" : " to " + std::to_string(high));
  return {[=](std::string& text) {
            int64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool read = error == std::errc() && end == text.data() + text.size();
            if (read && value >= low && value <= high) return std::string();
            return expected_found(open && read && value > high ? "at most " + std::to_string(high) : range, text);
          },
          range};
}

// A number that may have a fraction: finite, `low` to `high`.
inline CLI::Validator number(double low, double high, const std::string& range) {
  return {[=](std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool read = error == std::errc() && end == text.data() + text.size();
            return read && value >= low && value <= high ? std::string() : expected_found(range, text);
          },
          range};
}

// More threads than any machine of today has cores are a slip, and the system may not give them.
inline CLI::Validator thread_count() { return whole(0, 1024); }

inline CLI::Validator zero_or_more() { return number(0, std::numeric_limits<double>::max(), "0 or more"); }
inline CLI::Validator above_zero() {
  return number(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "a number above 0");
}
// Seconds.
inline CLI::Validator up_to_a_day() { return number(0, 86400, "0 to 86400 (a day)"); }

inline CLI::Validator some_text() {
  return {
      [](std::string& text) { return text.empty() ? std::string("expected some text, found none") : std::string(); },
      ""};
}

}  // namespace mdi
