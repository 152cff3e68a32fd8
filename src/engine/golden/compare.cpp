#include "engine/golden/compare.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/error.h"

namespace mdi::golden {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// A sum of terms that cancel keeps the terms' rounding: a bf16 step of so small a result is not meaningful.
constexpr double kNoDistance = 1e-6;

double difference(double found, double expected) {
  if (found == expected || (std::isnan(found) && std::isnan(expected))) return 0;
  const double d = std::abs(found - expected);
  return std::isfinite(d) ? d : kInfinity;
}

// bf16 values in ascending order are consecutive integers.
int64_t bf16_order(double v) {
  const int32_t bits = to_bf16(static_cast<float>(v)).bits;
  return (bits & 0x8000) != 0 ? -(bits & 0x7FFF) : bits;
}

struct Row {
  double largest = 0;           // difference
  double largest_expected = 0;  // magnitude
  double square = 0, square_expected = 0;
  int64_t different = 0;
  int64_t argmax_found = 0, argmax_expected = 0;
  double rel() const {
    if (square == 0) return 0;
    return square_expected > 0 && std::isfinite(square) ? std::sqrt(square / square_expected) : kInfinity;
  }
};

struct Measurement {
  std::vector<Row> rows;
  double largest = 0, sum = 0, ulps = 0;
  int64_t elements = 0;
  int64_t worst = 0;  // element of the largest difference
};

Measurement measure_all(const TensorView& found, const TensorView& expected, int64_t row_size) {
  Measurement m;
  const int64_t n = expected.elements();
  m.elements = n;
  const int64_t size = row_size > 0 ? row_size : std::max<int64_t>(1, n);
  for (int64_t begin = 0; begin < n; begin += size) {
    const int64_t end = std::min(n, begin + size);
    Row r;
    double top_found = -kInfinity, top_expected = -kInfinity;
    for (int64_t i = begin; i < end; ++i) {
      const double f = element(found, i), e = element(expected, i);
      const double d = difference(f, e);
      if (d > m.largest) {
        m.largest = d;
        m.worst = i;
      }
      m.sum += d;
      r.largest = std::max(r.largest, d);
      r.square += d * d;
      if (d != 0) ++r.different;
      if (std::isfinite(e)) {
        r.largest_expected = std::max(r.largest_expected, std::abs(e));
        r.square_expected += e * e;
      }
      if (f > top_found) {
        top_found = f;
        r.argmax_found = i;
      }
      if (e > top_expected) {
        top_expected = e;
        r.argmax_expected = i;
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      const double f = element(found, i), e = element(expected, i);
      const double d = difference(f, e);
      if (d == kInfinity) {
        m.ulps = kInfinity;
      } else if (d > kNoDistance * r.largest_expected) {
        m.ulps = std::max(m.ulps, static_cast<double>(std::llabs(bf16_order(f) - bf16_order(e))));
      }
    }
    m.rows.push_back(r);
  }
  return m;
}

Row all_rows(const Measurement& m) {
  Row all;
  for (const Row& r : m.rows) {
    all.square += r.square;
    all.square_expected += r.square_expected;
  }
  return all;
}

double measured(Rule rule, const Measurement& m) {
  double value = 0;
  const double rows = static_cast<double>(std::max<size_t>(1, m.rows.size()));
  switch (rule) {
    case Rule::kExact:
      for (const Row& r : m.rows) value += static_cast<double>(r.different);
      return value;
    case Rule::kUlp:
      return m.ulps;
    case Rule::kAbsolute:
      return m.largest;
    case Rule::kRowLargest:
      for (const Row& r : m.rows) {
        if (r.largest == 0) continue;
        value = std::max(value, r.largest_expected > 0 ? r.largest / r.largest_expected : kInfinity);
      }
      return value;
    case Rule::kRelative:
      return all_rows(m).rel();
    case Rule::kOutlier: {
      if (m.largest == 0) return 0;
      const double square = all_rows(m).square_expected / static_cast<double>(std::max<int64_t>(1, m.elements));
      return square > 0 ? m.largest / std::sqrt(square) : kInfinity;
    }
    case Rule::kMedianRow: {
      if (m.rows.empty()) return 0;
      std::vector<double> rel;
      for (const Row& r : m.rows) rel.push_back(r.rel());
      const auto middle = rel.begin() + static_cast<std::ptrdiff_t>(rel.size() / 2);
      std::nth_element(rel.begin(), middle, rel.end());
      return *middle;
    }
    case Rule::kSameArgmax:
      if (m.rows.empty()) return 1;
      for (const Row& r : m.rows) value += r.argmax_found == r.argmax_expected ? 1 : 0;
      return value / rows;
  }
  return kInfinity;
}

bool is_share(Rule rule) { return rule == Rule::kSameArgmax; }

bool within(const Tolerance& t, double value) { return is_share(t.rule) ? value >= t.limit : value <= t.limit; }

std::string describe(const Tolerance& t, double value) {
  const char* relation = within(t, value) ? (is_share(t.rule) ? ">=" : "<=") : (is_share(t.rule) ? "<" : ">");
  switch (t.rule) {
    case Rule::kExact:
      return t.limit == 0 && value == 0 ? "exact" : fmt::format("{:.0f} differ {} {:.0f}", value, relation, t.limit);
    case Rule::kUlp:
      return fmt::format("ulp {:.0f} {} {:.0f}", value, relation, t.limit);
    case Rule::kAbsolute:
      return fmt::format("abs {:.1e} {} {:.1e}", value, relation, t.limit);
    case Rule::kRowLargest:
      return fmt::format("of row's largest {:.1e} {} {:.1e}", value, relation, t.limit);
    case Rule::kRelative:
      return fmt::format("rel {:.1e} {} {:.1e}", value, relation, t.limit);
    case Rule::kMedianRow:
      return fmt::format("median row {:.1e} {} {:.1e}", value, relation, t.limit);
    case Rule::kOutlier:
      return fmt::format("largest / rms {:.1e} {} {:.1e}", value, relation, t.limit);
    case Rule::kSameArgmax:
      return fmt::format("same argmax {:.3f} {} {:.3f}", value, relation, t.limit);
  }
  return "";
}

int64_t row_of(const TensorView& expected, int64_t row) {
  return row > 0 || expected.rank == 0 ? row : expected.shape[static_cast<size_t>(expected.rank - 1)];
}

}  // namespace

double element(const TensorView& t, int64_t i) {
  switch (t.dtype) {
    case DType::kF32:
      return t.as<float>()[i];
    case DType::kBF16:
      return to_float(t.as<bf16>()[i]);
    case DType::kE4M3:
      return to_float(t.as<e4m3>()[i]);
    case DType::kE8M0:
      return to_float(t.as<e8m0>()[i]);
    case DType::kI8:
      return t.as<int8_t>()[i];
    case DType::kU8:
      return t.as<uint8_t>()[i];
    case DType::kI32:
      return t.as<int32_t>()[i];
    case DType::kI64:
      return static_cast<double>(t.as<int64_t>()[i]);
  }
  return 0;
}

double measure(Rule rule, const TensorView& found, const TensorView& expected, int64_t row) {
  return measured(rule, measure_all(found, expected, row_of(expected, row)));
}

Quantity compare(std::string name, const TensorView& found, const TensorView& expected, const Tolerances& tolerances,
                 int64_t row) {
  if (found.elements() != expected.elements()) {
    throw Error(name, "expected " + shape_text(expected) + ", computed " + shape_text(found));
  }
  const int64_t row_size = row_of(expected, row);
  const Measurement m = measure_all(found, expected, row_size);
  Quantity q;
  q.name = std::move(name);
  q.compared = true;
  q.largest = m.largest;
  q.mean = m.sum / static_cast<double>(std::max<int64_t>(1, expected.elements()));
  q.verdict = Verdict::kPass;
  for (const Tolerance& t : tolerances) {
    const double value = measured(t.rule, m);
    if (!within(t, value)) q.verdict = Verdict::kFail;
    if (!q.tolerance.empty()) q.tolerance += ", ";
    q.tolerance += describe(t, value);
  }
  if (m.largest > 0) {
    q.note = fmt::format("largest at row {}, element {}: expected {:.6g}, found {:.6g}",
                         m.worst / std::max<int64_t>(1, row_size), m.worst % std::max<int64_t>(1, row_size),
                         element(expected, m.worst), element(found, m.worst));
  }
  return q;
}

}  // namespace mdi::golden
