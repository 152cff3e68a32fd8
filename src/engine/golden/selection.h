// Comparing selections of the largest scores: rows of positions (or experts), -1 for none.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/golden/report.h"

namespace mdi::golden {

// How free each row's choice was.
struct Freedom {
  // Score of the last that was chosen minus the best that was not, by the stored scores; infinity: no choice.
  std::vector<float> margin;
  // Largest difference between the scores that the two choices were made from; infinity: not known.
  std::vector<float> moved;

  static Freedom unknown(int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    return {std::vector<float>(n, 0), std::vector<float>(n, std::numeric_limits<float>::infinity())};
  }
};

// found, expected [rows, width], each row in ascending order, then -1. Where no score moved by more than `moved`, the
// largest ones are others only if the margin is at most twice that: a row that selects otherwise without that excuse
// FAILs the quantity. So does a mean share of the expected entries found again below `overlap`, over the rows that had
// a choice; of few rows one may always differ. `largest` and `mean` count the entries by which rows differ.
Quantity compare_selections(std::string name, const std::vector<int32_t>& found, const std::vector<int32_t>& expected,
                            int64_t width, const Freedom& freedom, double overlap);

}  // namespace mdi::golden
