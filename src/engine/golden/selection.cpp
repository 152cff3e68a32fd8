#include "engine/golden/selection.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace mdi::golden {
namespace {

// Entries of a row that the other row does not have.
int64_t missing_entries(const int32_t* row, const int32_t* other, int64_t width) {
  return std::count_if(row, row + width,
                       [&](int32_t at) { return at >= 0 && std::find(other, other + width, at) == other + width; });
}

}  // namespace

Quantity compare_selections(std::string name, const std::vector<int32_t>& found, const std::vector<int32_t>& expected,
                            int64_t width, const Freedom& freedom, double overlap) {
  const auto rows = static_cast<int64_t>(freedom.margin.size());
  if (found.size() != expected.size() || static_cast<int64_t>(found.size()) != rows * width ||
      freedom.moved.size() != freedom.margin.size()) {
    throw Error(name, fmt::format("expected {} rows of {} selected entries", rows, width));
  }
  Quantity q;
  q.compared = true;
  int64_t wanted = 0, lost = 0, differences = 0, unexcused = 0, first_unexcused = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t* f = found.data() + i * width;
    const int32_t* e = expected.data() + i * width;
    const float margin = freedom.margin[static_cast<size_t>(i)], moved = freedom.moved[static_cast<size_t>(i)];
    if (std::isfinite(margin)) wanted += std::count_if(e, e + width, [](int32_t at) { return at >= 0; });
    if (std::equal(f, f + width, e)) continue;
    const int64_t missing = missing_entries(e, f, width);
    const int64_t different = std::max(missing, missing_entries(f, e, width));
    if (std::isfinite(margin)) lost += missing;
    q.largest = std::max(q.largest, static_cast<double>(different));
    differences += different;
    // The same entries in another order have no excuse.
    const bool excused = different > 0 && moved > 0 && margin <= 2 * moved;
    if (!excused && unexcused++ == 0) first_unexcused = i;
  }
  const double limit = std::max(0.0, std::min(overlap, 1 - 1 / static_cast<double>(std::max<int64_t>(1, rows))));
  const double share = wanted == 0 ? 1 : 1 - static_cast<double>(lost) / static_cast<double>(wanted);
  q.mean = rows == 0 ? 0 : static_cast<double>(differences) / static_cast<double>(rows);
  q.verdict = unexcused == 0 && share >= limit ? Verdict::kPass : Verdict::kFail;
  q.tolerance = fmt::format("overlap {:.3f} {} {:.3f}, {} rows beyond their margin", share, share >= limit ? ">=" : "<",
                            limit, unexcused);
  if (unexcused > 0) {
    const auto at = static_cast<size_t>(first_unexcused);
    q.note = fmt::format("row {} selects otherwise, its margin is {:.3g}, its scores differ by {:.3g}", first_unexcused,
                         freedom.margin[at], freedom.moved[at]);
  }
  q.name = std::move(name);
  return q;
}

}  // namespace mdi::golden
