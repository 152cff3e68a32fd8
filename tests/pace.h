// How many times slower than usual what is tested may be: sanitizers cost that much. Every limit on time that a test
// sets or asserts is multiplied with it, and what a test does by the thousand is done less often.
#pragma once

namespace mdi {

inline constexpr double kPace = MDI_TEST_PACE;

}  // namespace mdi
