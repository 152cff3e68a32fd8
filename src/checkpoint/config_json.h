// The way back from ModelConfig to a config.json.
#pragma once

#include <string>

#include "checkpoint/config.h"

namespace mdi {

// The text of a config.json in the released nesting (spec model.md 1.1 to 1.3), which parse_config reads back to the
// same struct. Floats are written with the shortest digits that give the same float.
std::string config_json(const ModelConfig& config);

}  // namespace mdi
