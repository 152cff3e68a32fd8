// Our own matrix product: one chain of fused multiply-adds per output, k ascending, whatever the number of rows.
#pragma once

#include <cstdint>

namespace mdi::cpu {

// chain[i, n] = fma(x[i, k], b[k, n], chain[i, n]) for k = 0, 1, ...; x [rows, k] row stride ldx, b [k, 64],
// chain [rows, 64].
void fma_rows(const float* x, int64_t ldx, int64_t rows, const float* b, int64_t k, float* chain);

// sum[i] += chain[i] over rows * 64 values.
void add_chain(const float* chain, int64_t rows, float* sum);

}  // namespace mdi::cpu
