#include "engine/bench/compare.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"

namespace mdi::bench {

namespace {

double bf16_ulp(double v) {
  const double a = std::fabs(v);
  return a < 0x1p-126 ? 0x1p-133 : std::ldexp(1.0, std::ilogb(a) - 7);
}

double rms(std::span<const double> row) {
  double sum = 0;
  for (const double v : row) sum += v * v;
  return row.empty() ? 0 : std::sqrt(sum / static_cast<double>(row.size()));
}

void check_sizes(const std::string& what, size_t got, size_t want) {
  if (got == want) return;
  throw Error(what, "expected " + std::to_string(want) + " values, found " + std::to_string(got));
}

}  // namespace

Checked compare_rows(std::string what, int layer, const std::vector<double>& got, const std::vector<double>& want,
                     int64_t columns, Tolerance tolerance) {
  check_sizes(what, got.size(), want.size());
  Checked c{
      .what = std::move(what), .layer = layer, .elements = static_cast<int64_t>(want.size()), .tolerance = tolerance};
  double sum = 0;
  for (size_t begin = 0; begin < want.size(); begin += static_cast<size_t>(columns)) {
    const size_t end = std::min(begin + static_cast<size_t>(columns), want.size());
    const double scale = rms(std::span(want).subspan(begin, end - begin));
    for (size_t i = begin; i < end; ++i) {
      if (got[i] == want[i]) continue;
      const double difference = std::fabs(got[i] - want[i]);
      const bool agrees = difference <= tolerance.ulps * bf16_ulp(want[i]) + tolerance.row * scale;  // not of a NaN
      if (!agrees) ++c.wrong;
      const double relative = scale > 0 ? difference / scale : difference;
      if (!(relative <= c.max)) {
        c.max = relative;
        c.got = got[i];
        c.want = want[i];
      }
      sum += relative;
    }
  }
  c.mean = want.empty() ? 0 : sum / static_cast<double>(want.size());
  const bool near = std::isfinite(c.mean) && (tolerance.mean == 0 || c.mean <= tolerance.mean);
  c.passed = near && static_cast<double>(c.wrong) <= tolerance.share * static_cast<double>(c.elements);
  return c;
}

Checked compare_choices(std::string what, int layer, const std::vector<int32_t>& got, const std::vector<int32_t>& want,
                        int64_t columns, double share) {
  check_sizes(what, got.size(), want.size());
  Checked c{.what = std::move(what), .layer = layer, .tolerance = {.ulps = 0, .row = 0, .share = share, .mean = 0}};
  for (size_t begin = 0; begin < want.size(); begin += static_cast<size_t>(columns)) {
    const auto ends = [&](const std::vector<int32_t>& v) {
      const auto first = v.begin() + static_cast<ptrdiff_t>(begin);
      return std::pair(first, std::find(first, first + static_cast<ptrdiff_t>(columns), -1));
    };
    const auto [g, g_end] = ends(got);
    const auto [w, w_end] = ends(want);
    std::vector<int32_t> missing;
    std::set_difference(w, w_end, g, g_end, std::back_inserter(missing));
    c.elements += w_end - w;
    const auto lacks = static_cast<int64_t>(missing.size());
    c.wrong += std::max(lacks, (g_end - g) - (w_end - w) + lacks);  // or has too many
    if (w_end > w) c.max = std::max(c.max, static_cast<double>(lacks) / static_cast<double>(w_end - w));
  }
  c.mean = c.elements > 0 ? static_cast<double>(c.wrong) / static_cast<double>(c.elements) : 0;
  c.passed = c.mean <= share;
  return c;
}

}  // namespace mdi::bench
