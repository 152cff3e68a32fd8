// What a benchmark measured, as tables for people and as JSON.
#pragma once

#include <string>

#include "engine/bench/bench.h"

namespace mdi::bench {

std::string report_text(const BenchReport& report);
std::string report_json(const BenchReport& report);
std::string kernels_text(const KernelReport& report);
std::string kernels_json(const KernelReport& report);

// Whether every comparison passed.
bool all_passed(const std::vector<Checked>& checks);

}  // namespace mdi::bench
