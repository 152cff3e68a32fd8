// Every tensor that a checkpoint of a given configuration holds (spec checkpoint.md 1): the one list that the loader
// checks against, the synthetic writer writes, and `mdi inspect` sums.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "core/dtype.h"

namespace mdi {

// The parts of spec checkpoint.md section 3, in that order.
enum class Part : uint8_t {
  kRoutedExperts,
  kEngram,
  kDraftExperts,
  kAttention,
  kSharedExperts,
  kEmbedHead,
  kVision,
  kDraftDense,
  kHyperConnections,
  kGates,
  kIndexers,
  kCompressors,
  kFinalNorm,
  kCount
};
const char* part_name(Part p);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  Part part = Part::kFinalNorm;
  int layer = -1;  // backbone layer, or n_layers + draft stage; -1 outside the layers

  int64_t elements() const;
  int64_t bytes() const;
};

std::vector<TensorSpec> inventory(const ModelConfig& config);

}  // namespace mdi
