// What one H200 sustains at its power limit (docs/gpu-report.md), not its data sheet's: what a floor is counted with.
#pragma once

namespace mdi::sustained {

inline constexpr double kHbmGBs = 4267, kBF16TFlops = 672, kFP8TFlops = 1286;  // bytes read and written; operations

}  // namespace mdi::sustained
