// Sets of Unicode scalar values: what a character class of a pattern stands for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace mdi {

// Ascending, neither overlapping nor touching; no surrogates, since no text has them.
using CodePoints = std::vector<std::pair<char32_t, char32_t>>;  // first and last, inclusive

CodePoints all_code_points();
// Ranges in any order, overlapping or not; surrogates are left out.
CodePoints normalised(CodePoints ranges);
CodePoints complement(const CodePoints& set);
CodePoints intersection(const CodePoints& a, const CodePoints& b);
bool contains(const CodePoints& set, char32_t c);

}  // namespace mdi
