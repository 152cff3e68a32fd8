// The pair softmax of the ratio-2 compressor (spec 6.5).
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// latent[t] [T, head_dim]: of the pair that row t completes, from args.step_pending (filled for all rows of the step)
// and, for a pair that began in an earlier step, args.pending; zeros in rows that complete none.
void compress_pairs(CudaContext&, const StepView& step, const CompressArgs& args, bf16* latent);

}  // namespace mdi::cuda
