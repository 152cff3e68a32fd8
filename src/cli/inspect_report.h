// What `mdi inspect` prints.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "checkpoint/memory_plan.h"

namespace mdi {

struct PartSum {
  int64_t tensors = 0;
  uint64_t bytes = 0;
};
using PartSums = std::array<PartSum, static_cast<size_t>(Part::kCount)>;
PartSums sum_parts(const std::vector<TensorSpec>& tensors);

struct Inspection {
  std::string path;
  bool has_files = false;  // the files were opened and agree with the inventory
  ModelConfig config;
  PartSums parts;
  MemoryPlan plan;
};

// Tables for people.
std::string inspection_text(const Inspection& i);
// The same as one JSON object: model, layers, parts, plan.
std::string inspection_json(const Inspection& i);

// The layers by what they do, for both: {"reuse, ratio 2", "3-7, 9-13, 15-19"}.
struct LayerKind {
  std::string name;
  std::vector<int> layers;
};
std::vector<LayerKind> layer_kinds(const ModelConfig& config);
// "3-7, 9"
std::string ranges(const std::vector<int>& layers);

}  // namespace mdi
