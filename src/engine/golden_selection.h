// Comparing selections of positions: rows of ascending positions, -1 for none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/golden_report.h"

namespace mdi::golden {

// Selections made from scores that may differ a little. A row may select otherwise only where the stored choice was
// closer than the scores allow: where its margin (score of the last selected minus the best that was not; infinity: no
// choice) is at most twice the largest difference of the row's scores.
//   found, expected [rows, width]; margin, score_difference [rows].
// The quantity FAILs when a row selects otherwise without that excuse, or when fewer than `share` of the rows are
// equal. `largest` is the largest number of positions by which a row differs, `mean` the mean.
Quantity compare_selections(std::string name, const std::vector<int32_t>& found, const std::vector<int32_t>& expected,
                            int64_t width, const std::vector<float>& margin, const std::vector<float>& score_difference,
                            double share);

// Positions of a row that the other row does not have.
int64_t missing_positions(const int32_t* row, const int32_t* other, int64_t width);

}  // namespace mdi::golden
