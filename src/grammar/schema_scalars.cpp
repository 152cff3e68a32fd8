// Strings and numbers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "grammar/formats.h"
#include "grammar/schema_rules.h"

// XGrammar's own, which its public headers leave out: an anchored pattern for the numbers between two ends.
namespace xgrammar {
std::string GenerateRangeRegex(std::optional<int64_t> start, std::optional<int64_t> end);
std::string GenerateFloatRangeRegex(std::optional<double> start, std::optional<double> end, bool exclusive_start,
                                    bool exclusive_end);  // at most six places behind the point
}  // namespace xgrammar

namespace mdi {
namespace {

constexpr int64_t kLargest = 999'999'999'999'999'999;  // 18 digits, as integers without bounds
constexpr double kLargestReal = 1e15;                  // of the bounds of a real number: exact to six places or so
constexpr int64_t kMaxMultiples = 1'000;

struct Bound {
  double value = 0;
  bool given = false, exclusive = false;
};

// The tighter of keyword and its exclusive form.
template <typename Fail>
Bound bound(const OrderedJson& schema, const char* keyword, const char* exclusive, double sign, const Fail& fail) {
  Bound found;
  for (const char* name : {keyword, exclusive}) {
    const auto given = schema.find(name);
    if (given == schema.end()) continue;
    if (!given->is_number()) fail(name, "expected a number");
    const auto value = given->get<double>();
    const bool is_exclusive = name == exclusive;
    if (found.given && (sign * value < sign * found.value || (value == found.value && !is_exclusive))) continue;
    found = {value, true, is_exclusive};
  }
  return found;
}

}  // namespace

// plain: nothing is asked of the string.
SchemaRules::Expr SchemaRules::string_inside(const Place& place, const Pattern::Alphabet& alphabet, bool& plain) {
  const Json& schema = *place.schema;
  const auto text = [&](const char* keyword) -> std::optional<std::string> {
    const auto given = schema.find(keyword);
    if (given == schema.end()) return std::nullopt;
    if (!given->is_string()) fail(place, keyword, "expected a string");
    return given->get<std::string>();
  };
  const std::optional<std::string> pattern = text("pattern"), format = text("format");
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  const PatternLimits limits{options_.max_depth};
  if (pattern && format) unsupported(place, "format", "beside 'pattern'");
  if (lengths && (pattern || format)) {
    unsupported(place, schema.contains("minLength") ? "minLength" : "maxLength", "beside 'pattern' or 'format'");
  }
  plain = false;
  if (pattern) {
    try {
      return Pattern::parse(*pattern, where_ + place.path + "/pattern", limits).found(rules_, alphabet);
    } catch (const Error&) {
      if (options_.strict) throw;
    }
  }
  if (format) {
    if (const char* known = format_pattern(*format); known != nullptr) {
      return Pattern::parse(known, where_ + place.path + "/format", limits).whole(rules_, alphabet);
    }
    if (options_.strict) fail(place, "format", "the format '" + *format + "' is not supported");
  }
  const int64_t min = count(place, "minLength", 0), max = count(place, "maxLength", GrammarRules::kNoLimit);
  plain = min == 0 && max == GrammarRules::kNoLimit;
  return plain ? rules_.never() : rules_.repeat(alphabet.counted(rules_), min, max);
}

SchemaRules::Expr SchemaRules::integer(const Place& place) {
  const auto wrong = [&](const char* keyword, const char* what) { fail(place, keyword, what); };
  const Bound low = bound(*place.schema, "minimum", "exclusiveMinimum", 1, wrong);
  const Bound high = bound(*place.schema, "maximum", "exclusiveMaximum", -1, wrong);
  const auto whole = [](double value) { return static_cast<int64_t>(std::clamp(value, -1e18, 1e18)); };
  int64_t first = -kLargest, last = kLargest;
  if (low.given)
    first = std::max(first, low.exclusive ? whole(std::floor(low.value)) + 1 : whole(std::ceil(low.value)));
  if (high.given)
    last = std::min(last, high.exclusive ? whole(std::ceil(high.value)) - 1 : whole(std::floor(high.value)));
  if (first > last) return rules_.never();

  int64_t step = 1;
  if (const auto given = place.schema->find("multipleOf"); given != place.schema->end()) {
    if (!given->is_number() || given->get<double>() <= 0) fail(place, "multipleOf", "expected a number above 0");
    const auto of = given->get<double>();
    const bool followed = of == std::floor(of) && of <= 1e15 &&
                          (of == 1 || static_cast<double>(last - first) / of < static_cast<double>(kMaxMultiples));
    if (!followed) {
      unsupported(place, "multipleOf", "but for integers within bounds that are at most 1000 multiples apart");
    } else {
      step = static_cast<int64_t>(of);
    }
  }
  if (step != 1) {
    std::vector<Expr> multiples;
    const int64_t begin = first > 0 ? (first + step - 1) / step : first / step;
    for (int64_t k = begin; k * step <= last; ++k) multiples.push_back(rules_.text(std::to_string(k * step)));
    return rules_.choice(std::move(multiples));
  }
  if (!low.given && !high.given) return json_.integer();
  static const PlainAlphabet kPlain;
  return Pattern::parse(xgrammar::GenerateRangeRegex(first, last), where_ + place.path).whole(rules_, kPlain);
}

SchemaRules::Expr SchemaRules::number(const Place& place) {
  const auto wrong = [&](const char* keyword, const char* what) { fail(place, keyword, what); };
  Bound low = bound(*place.schema, "minimum", "exclusiveMinimum", 1, wrong);
  Bound high = bound(*place.schema, "maximum", "exclusiveMaximum", -1, wrong);
  if (place.schema->contains("multipleOf")) unsupported(place, "multipleOf", "for numbers that are no integers");
  if (low.given && high.given &&
      (low.value > high.value || (low.value == high.value && (low.exclusive || high.exclusive)))) {
    return rules_.never();
  }
  for (Bound* b : {&low, &high}) {
    const char* keyword =
        b == &low ? (b->exclusive ? "exclusiveMinimum" : "minimum") : (b->exclusive ? "exclusiveMaximum" : "maximum");
    if (!b->given || std::abs(b->value) <= kLargestReal) continue;
    unsupported(place, keyword, "beyond 1e15");
    b->given = false;
  }
  if (!low.given && !high.given) return json_.number();
  const auto end = [](const Bound& b) { return b.given ? std::optional<double>(b.value) : std::nullopt; };
  const std::string regex = xgrammar::GenerateFloatRangeRegex(end(low), end(high), low.exclusive, high.exclusive);
  if (regex == "^()$") fail(place, "", "no number of at most six places behind the point is within the bounds");
  static const PlainAlphabet kPlain;
  return Pattern::parse(regex, where_ + place.path).whole(rules_, kPlain);
}

}  // namespace mdi
