// What the fuzz targets share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"

namespace mdi::fuzz {

// Ends the run: the input is one for which something that must hold does not.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Calls `action`. An input may be refused with mdi::Error, of one short line, and in no other way.
template <class Action>
void allow_error(Action action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(message.size() < 1000, "an error message is short");
    require(message.find('\n') == std::string_view::npos, "an error message is one line");
  }
}

}  // namespace mdi::fuzz
