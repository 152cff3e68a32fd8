// The sizes that a memory plan adds up, as functions of the configuration and the step alone.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/memory_plan.h"

namespace mdi {

// Sums over the inventory, made once.
struct WeightSums {
  uint64_t dense = 0;  // without vision and drafts
  uint64_t draft_dense = 0, vision = 0;
  uint64_t experts = 0, draft_experts = 0;  // all of them
  uint64_t engram_tables = 0, engram_row = 0;
  uint64_t wo_a = 0;  // elements in the backbone
};
WeightSums sum_weights(const ModelConfig& config);

// Bytes of one block: the compressed rows and index keys of every KV source for kPlanBlockTokens tokens.
uint64_t block_bytes(const ModelConfig& config);

// Fixed state of one sequence.
std::vector<PlanLine> slot_lines(const ModelConfig& config, bool drafts);

// What a step needs beside weights and state. `sequences`: of this rank.
std::vector<PlanLine> workspace_lines(const ModelConfig& config, const PlanOptions& options, int64_t sequences);

}  // namespace mdi
