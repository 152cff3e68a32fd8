// What the GPU has room for.
#pragma once

#include <cstdint>

namespace mdi {

// Bytes that the first GPU has free now. Throws mdi::Error where there is none, or this build has no CUDA backend.
uint64_t gpu_free_memory();

}  // namespace mdi
