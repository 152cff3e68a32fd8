// Pieces of the hyper-connection stages that several kernels share.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// x[i] = hc_pre(h[row], pre[row]) for row = rows[i] (rows null: i), before any norm; z likewise, or null. Any hc and
// dim.
void collapse_rows(CudaContext&, const int32_t* rows, int64_t count, int32_t hc, int32_t dim, const bf16* h,
                   const float* pre, bf16* x, bf16* z);

// hc_collapse for any hc <= 8 and dim: one block a row. Slow; for shapes that the fast kernel does not take.
void hc_collapse_plain(CudaContext&, int64_t rows, const HcCollapseArgs& args);

}  // namespace mdi::cuda
