// Where a check program finds the golden data on a machine that has no source tree.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace mdi::check {

// Sets MDI_GOLDEN (model/tiny_model.h) where it is not set: beside the program's folder in the bundle, or in the source
// tree.
inline void find_golden() {
  if (std::getenv("MDI_GOLDEN") != nullptr) return;
  for (const auto& dir : {std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../data/golden",
                          std::filesystem::path("tests/data/golden")}) {
    if (std::filesystem::exists(dir)) setenv("MDI_GOLDEN", dir.c_str(), 1);
    if (std::filesystem::exists(dir)) return;
  }
}

}  // namespace mdi::check
