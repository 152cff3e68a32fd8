// The values of JSON Schema's `format` that a grammar can follow, as patterns. What a pattern matches is always valid;
// not everything that is valid matches (an email address without quotes, years from 1000 to 9999, ...).
#pragma once

#include <string_view>

namespace mdi {

// A pattern for the whole string; nullptr for a format that is not known.
const char* format_pattern(std::string_view format);

}  // namespace mdi
