// The least time that a step's stages can take on one H200, from bytes and operations alone.
//
// Counted is what any implementation of the model must do: operands once from memory (weights as stored, activations as
// fp8 rows where a product quantises them, the residual stream once in and once out a sublayer), products at the rate
// of the matrix units: fp8 where the model quantises, bf16 where it does not (attention, wo_a, gate, compressor, head).
// The rates are those of kernels/cuda/sustained.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "engine/bench/routing.h"
#include "engine/stages.h"
#include "kernels/cuda/sustained.h"

namespace mdi::bench {

using sustained::kBF16TFlops, sustained::kFP8TFlops, sustained::kHbmGBs;

struct Work {
  double bytes = 0, fp8 = 0, bf16 = 0;  // fp8 and bf16: operations, two a multiply-add
  double floor_ms() const {
    const double memory = bytes / kHbmGBs * 1e-6, matrix = fp8 / kFP8TFlops * 1e-9 + bf16 / kBF16TFlops * 1e-9;
    return memory > matrix ? memory : matrix;
  }
};

// One rank's step: `sequences` of the same length, each with rows / sequences new tokens at the end of `context`.
struct StepShape {
  int64_t rows = 0, sequences = 1, context = 0, samples = 0;
  int64_t kept = 0;              // rows that the layers after the last KV source compute; rows: all
  bool bounds_source = false;    // the last source's own queries and experts too
  int32_t ranks = 1;             // whose tokens the experts get
  int32_t experts = 0;           // local ones
  std::vector<ExpertLoad> load;  // a layer each
};

// Milliseconds a stage; stages that do not occur have 0.
PerStage<double> step_floors(const ModelConfig& config, const StepShape& shape);

// Milliseconds of one operation of a layer (-1: outside the layers), by the name that op_name gives it; alone it reads
// and writes what a fused stage would keep. 0: not counted.
double operation_floor(const ModelConfig& config, const StepShape& shape, int layer, std::string_view name);

// Bytes that a rank receives over the wire in a step: rows of the other ranks' tokens in fp8 with their choices, and
// their bf16 partial sums of this rank's rows.
double wire_bytes(const ModelConfig& config, const StepShape& shape);

}  // namespace mdi::bench
