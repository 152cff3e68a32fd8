#include "engine/golden_selection.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace mdi::golden {

int64_t missing_positions(const int32_t* row, const int32_t* other, int64_t width) {
  int64_t missing = 0;
  for (int64_t i = 0; i < width; ++i) {
    if (row[i] >= 0 && std::find(other, other + width, row[i]) == other + width) ++missing;
  }
  return missing;
}

Quantity compare_selections(std::string name, const std::vector<int32_t>& found, const std::vector<int32_t>& expected,
                            int64_t width, const std::vector<float>& margin, const std::vector<float>& score_difference,
                            double share) {
  const auto rows = static_cast<int64_t>(margin.size());
  if (found.size() != expected.size() || static_cast<int64_t>(found.size()) != rows * width ||
      score_difference.size() != margin.size()) {
    throw Error(name, fmt::format("expected {} rows of {} selected positions", rows, width));
  }
  Quantity q;
  q.compared = true;
  int64_t equal = 0, unexcused = 0, first_unexcused = -1, sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t* f = &found[static_cast<size_t>(i * width)];
    const int32_t* e = &expected[static_cast<size_t>(i * width)];
    if (std::equal(f, f + width, e)) {
      ++equal;
      continue;
    }
    const int64_t moved = std::max(missing_positions(f, e, width), missing_positions(e, f, width));
    q.largest = std::max(q.largest, static_cast<double>(moved));
    sum += moved;
    // The same positions in another order, or a difference that the scores do not explain.
    const float moved_by = score_difference[static_cast<size_t>(i)];
    if (moved == 0 || !(moved_by > 0 && margin[static_cast<size_t>(i)] <= 2 * moved_by)) {
      if (unexcused++ == 0) first_unexcused = i;
    }
  }
  const double equal_share = rows == 0 ? 1 : static_cast<double>(equal) / static_cast<double>(rows);
  q.mean = rows == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(rows);
  q.verdict = unexcused == 0 && equal_share >= share ? Verdict::kPass : Verdict::kFail;
  q.tolerance = fmt::format("same rows {:.3f} {} {:.3f}, beyond margin {}", equal_share,
                            equal_share >= share ? ">=" : "<", share, unexcused);
  if (first_unexcused >= 0) {
    q.note = fmt::format("row {} selects otherwise though its margin is {:.3g} and its scores differ by {:.3g}",
                         first_unexcused, margin[static_cast<size_t>(first_unexcused)],
                         score_difference[static_cast<size_t>(first_unexcused)]);
  }
  q.name = std::move(name);
  return q;
}

}  // namespace mdi::golden
