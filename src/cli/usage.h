// What is wrong with a command line ends with exit code 2 and the hint to --help; what goes wrong later with 1.
#pragma once

#include <CLI/CLI.hpp>

#include "core/error.h"

namespace mdi {

// Runs `check`, in which an mdi::Error is about an option's value.
template <class Check>
auto usage_checked(Check check) {
  try {
    return check();
  } catch (const Error& e) {
    throw CLI::ValidationError(e.what());
  }
}

}  // namespace mdi
