// Comparing what two backends made of the same inputs, as the kernel checks do (tests/cuda).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mdi::bench {

// An element agrees when |got - want| <= ulps * (one bf16 rounding of want) + row * (RMS of want's row). `share` of the
// elements may disagree: where an intermediate rounding falls on the other side of a tie, the codes behind it move.
// `mean`, where it is set, bounds the mean difference in units of the row's RMS: what a wrong formula would exceed
// everywhere.
struct Tolerance {
  double ulps = 0, row = 0, share = 0, mean = 0;
};

struct Checked {
  std::string what;  // operation and output
  int layer = -1;
  int64_t elements = 0, wrong = 0;
  double max = 0, mean = 0;  // of |got - want|, in units of the row's RMS
  double got = 0, want = 0;  // where it is largest
  Tolerance tolerance;
  bool passed = true;
};

// rows x columns, in double. A NaN agrees with nothing.
Checked compare_rows(std::string what, int layer, const std::vector<double>& got, const std::vector<double>& want,
                     int64_t columns, Tolerance tolerance);

// Rows of ascending positions, then -1. `mean` is the share of want's entries that got lacks; it passes up to
// tolerance.share.
Checked compare_choices(std::string what, int layer, const std::vector<int32_t>& got, const std::vector<int32_t>& want,
                        int64_t columns, double share);

}  // namespace mdi::bench
