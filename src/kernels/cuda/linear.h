// linear(x, w) of spec 4 on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// y[i, n] = sum_k x[i, k] w[n, k], fp32 sums, exactly one of y_bf16 (one rounding) and y_f32, row stride ldy. x [m,
// w.k] dense; for kE4M3 and kE2M1 weights it goes through act_quant first (workspace: m * w.k * 2 bytes). m = 0 is
// legal. Arrays are 16-byte aligned and ldy is a multiple of 8 when w.n is.
void linear(CudaContext& context, const bf16* x, int64_t m, const LinearWeight& w, bf16* y_bf16, float* y_f32,
            int64_t ldy);

// The same without act_quant: x holds what the product multiplies (rows of act_quant_dequant_rows, row stride ldx).
void linear_quantised(CudaContext& context, const bf16* x, int64_t m, int64_t ldx, const LinearWeight& w, bf16* y_bf16,
                      float* y_f32, int64_t ldy);

}  // namespace mdi::cuda
