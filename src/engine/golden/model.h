// A checkpoint folder with expected outputs, against the engine.
#pragma once

#include <filesystem>
#include <string>

#include "engine/golden/report.h"
#include "kernels/ops.h"

namespace mdi::golden {

// dir has config.json, the weights, expected/*.safetensors and, where there are engram layers, engram_token_map.json;
// two_runs.json may be absent. `prefix` ("tiny-text/") goes before the names. What is wrong in the folder is a FAIL.
// device: null, or the context that the model runs on instead of `cpu`; it is compared with `cpu` as well.
void check_checkpoint(const std::filesystem::path& dir, const std::string& prefix, Context& cpu, Context* device,
                      Report& report);

}  // namespace mdi::golden
