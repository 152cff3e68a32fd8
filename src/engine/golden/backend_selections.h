// What one of two backends alone selects, judged by the oracle's scores.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/golden/prompt.h"

namespace mdi::golden {

// Entries that are in one list alone, and how far the furthest lies from the threshold.
struct OneSided {
  int64_t entries = 0;    // in one list alone
  int64_t unexcused = 0;  // of these, further than one bf16 rounding from the threshold, or in a list of another length
  int64_t steps = 0;      // of the furthest, in bf16 roundings
};

// The two lists of one row: entry ids, -1 for none, and the oracle's score of each id (a NaN: not scored). The
// threshold is the least score that the oracle selected. `keep`: how many a full list has; a shorter one has everything
// that could be chosen, so that both must be equal.
OneSided one_sided(std::span<const int32_t> found, std::span<const int32_t> expected, std::span<const bf16> scores,
                   int64_t keep);

// Index lists and candidate blocks of every layer that selects, as one PASS or FAIL: the layers of `run` were fed with
// the oracle's stream.
void judge_selections(const Prompt& prompt, const Recording& run, const Recording& oracle);

}  // namespace mdi::golden
