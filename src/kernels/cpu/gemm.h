// Dense products of the CPU backend, through oneDNN within the invariance rule: a row's result depends on that row, the
// weight and its shape alone, never on how many rows are multiplied with it.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/ops.h"

namespace mdi::cpu {

// y[i, n] = sum_k x[i, k] * dequantised w[n, k] in fp32. Exactly one of y_f32 and y_bf16 is set; bf16 rounds once.
// x holds what the product multiplies: for kE4M3 and kE2M1 weights of W8A8 / W4A8 products the caller passes rows that
// went through act_quant_dequant (exact in bf16); wo_a's rows are passed as they are.
struct GemmArgs {
  const bf16* x = nullptr;  // [m, w.k], row stride ldx
  int64_t m = 0, ldx = 0;
  LinearWeight w;
  float* y_f32 = nullptr;  // [m, w.n], row stride ldy
  bf16* y_bf16 = nullptr;
  int64_t ldy = 0;
};
void gemm(ThreadPool& pool, const GemmArgs& args);

// Rows [first, first + n) of w as a weight of its own (first a multiple of 32 for kE4M3).
LinearWeight rows_of(const LinearWeight& w, int64_t first, int64_t n);

// "oneDNN 2.6.3, f32 operands (avx512), tiles of ..." for the log.
const char* gemm_description();

}  // namespace mdi::cpu
