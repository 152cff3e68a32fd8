#include "checkpoint/byte_size.h"

#include <spdlog/fmt/fmt.h>

#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {

namespace {

// The factor of "GB", "gib", "G", "" ...; 0 for what is not a unit.
double unit_factor(std::string_view unit) {
  std::string u;
  for (const char c : unit) u += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (u.empty() || u == "b") return 1;
  const size_t prefix = std::string_view("kmgtp").find(u[0]);
  if (prefix == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(u).substr(1);
  const auto power = static_cast<double>(prefix + 1);
  if (rest.empty() || rest == "b") return std::pow(1000.0, power);
  if (rest == "i" || rest == "ib") return std::pow(1024.0, power);
  return 0;
}

}  // namespace

uint64_t parse_size(std::string_view text, std::string_view where) {
  const auto refuse = [&]() -> uint64_t {
    throw Error(where, "expected a size such as 141GB, 80GiB or 4096, found '" + printable(text, 40) + "'");
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return refuse();
  std::string_view unit(at, static_cast<size_t>(end - at));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double factor = unit_factor(unit);
  const double bytes = value * factor;
  if (factor == 0 || bytes > 0x1p62) return refuse();
  return static_cast<uint64_t>(bytes);
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.995 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string with_commas(uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace mdi
