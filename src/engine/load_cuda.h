// The GPU as a place to run a model, where this build has the CUDA backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/memory_plan.h"
#include "kernels/ops.h"

namespace mdi {

// Throws mdi::Error when this build has no CUDA backend, or the machine no GPU that it can use (kernels/gpu_device.h).
void need_gpu();

// A context on the first GPU, or need_gpu's error.
std::unique_ptr<Context> make_gpu_context();

// What a plan that does not fit into `free` bytes needs, line by line, for an error.
std::string plan_text(const MemoryPlan& plan, uint64_t free);

// Throws mdi::Error(device, plan_text) when a model of this configuration, with one sequence, the vision tower where it
// has one, and the scratch of make_gpu_context, does not fit into `free` bytes.
void check_room(const ModelConfig& config, const std::string& device, uint64_t free);

// check_room of the first GPU and what it has free now, before make_gpu_context. Also throws what that would throw when
// there is no such GPU.
void check_gpu_room(const ModelConfig& config);

}  // namespace mdi
