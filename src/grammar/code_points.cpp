#include "grammar/code_points.h"

#include <algorithm>

namespace mdi {
namespace {
constexpr char32_t kLast = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

CodePoints merged(CodePoints ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePoints set;
  for (const auto& [first, last] : ranges) {
    if (first > last) continue;
    if (!set.empty() && first <= set.back().second + 1) {
      set.back().second = std::max(set.back().second, last);
    } else {
      set.emplace_back(first, last);
    }
  }
  return set;
}
}  // namespace

CodePoints all_code_points() { return {{0, kFirstSurrogate - 1}, {kLastSurrogate + 1, kLast}}; }

CodePoints normalised(CodePoints ranges) { return intersection(merged(std::move(ranges)), all_code_points()); }

CodePoints complement(const CodePoints& set) {
  CodePoints rest;
  char32_t next = 0;
  for (const auto& [first, last] : set) {
    if (first > next) rest.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) rest.emplace_back(next, kLast);
  return intersection(rest, all_code_points());
}

CodePoints intersection(const CodePoints& a, const CodePoints& b) {
  CodePoints both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].second, b[j].second);
    if (first <= last) both.emplace_back(first, last);
    ++(a[i].second < b[j].second ? i : j);
  }
  return both;
}

bool contains(const CodePoints& set, char32_t c) {
  return std::any_of(set.begin(), set.end(), [c](const auto& r) { return r.first <= c && c <= r.second; });
}

}  // namespace mdi
