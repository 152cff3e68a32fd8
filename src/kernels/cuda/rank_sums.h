// The receiving end of the experts' combine: partial sums of several ranks into one.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace mdi::cuda {

// sum[i] = partial[0][i] + partial[1][i] + ..., in the order of the ranks; rank r's are at partial + r * n. n % 4 == 0.
void add_rank_sums(CudaContext&, const float* partial, int ranks, int64_t n, float* sum);

}  // namespace mdi::cuda
