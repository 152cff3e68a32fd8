// Arguments of the operations of the experts (ops.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// Expert choice (7). index: by falling biased score, ties to the lower expert; weight: normalised, times route_scale.
// Tap: gate_scores_biased.
struct RouteArgs {
  int32_t experts = 0, topk = 0;
  float route_scale = 0, gate_temp = 1;
  const bf16* x = nullptr;  // [T, dim]
  LinearWeight gate;        // kBF16 [experts, dim], computed in fp32
  const float* bias = nullptr;
  const float* bias_vl = nullptr;  // for dead rows; null: text-only model
  int32_t* index = nullptr;        // out [T, topk]
  float* weight = nullptr;         // out [T, topk]
};

// sum[t] = sum over this rank's chosen experts, in ascending id, of fp32(expert(x)) with the routing weight applied
// before w2 (7). Experts [first, first + count) are local; others contribute nothing.
struct RoutedExpertsArgs {
  int32_t topk = 0, first = 0, count = 0;
  int32_t experts_total = 0;  // of all ranks, to guess how many rows a local one gets (0: count): speed, not results
  float swiglu_limit = 0;
  const bf16* x = nullptr;                 // [T, dim]
  const int32_t* index = nullptr;          // [T, topk]
  const float* weight = nullptr;           // [T, topk]
  const ExpertWeights* experts = nullptr;  // host array [count]
  float* sum = nullptr;                    // out [T, dim]
};

// y = bf16(sum + fp32(shared(x))) (7).
struct SharedExpertArgs {
  float swiglu_limit = 0;
  const bf16* x = nullptr;  // [T, dim]
  ExpertWeights weights;
  const float* sum = nullptr;  // [T, dim]
  bf16* y = nullptr;           // out [T, dim]
};

}  // namespace mdi
