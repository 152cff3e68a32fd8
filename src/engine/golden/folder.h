// A folder of golden data (golden/README.md's form): operator cases and checkpoints with their expected outputs.
#pragma once

#include <filesystem>
#include <string>

#include "engine/golden/report.h"

namespace mdi::golden {

// Checks everything that the folder holds: what its manifest.json lists, what lies in it, or the folder itself where it
// is one checkpoint with expected/ or one set of operator cases. threads 0: one a core.
//
// What is wrong inside the folder (a missing file, a damaged tensor, a value that differs) is a FAIL of the report.
// device "cuda": the checkpoints run on the GPU, and are compared with the CPU backend too; the operator cases, which
// are of the CPU's reference functions, are left out.
// Throws mdi::Error only when there is no such folder or device.
void check_folder(const std::filesystem::path& dir, int threads, Report& report, const std::string& device = "cpu");

}  // namespace mdi::golden
