// The GPU as a place to run a model, where this build has the CUDA backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/memory_plan.h"
#include "kernels/ops.h"

namespace mdi {

// A context on the first GPU. An error says that this build has no CUDA backend, or what the GPU lacks.
std::unique_ptr<Context> make_gpu_context();

// What a plan that does not fit into `free` bytes needs, line by line, for an error.
std::string plan_text(const MemoryPlan& plan, uint64_t free);

// Throws mdi::Error with the memory plan when a model of this configuration, with one sequence, does not fit into what
// the first GPU has free.
void check_gpu_room(const ModelConfig& config);

}  // namespace mdi
