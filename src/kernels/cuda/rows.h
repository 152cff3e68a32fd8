// Row operations between the products: quantisers, norms, rope and the writers of cache rows, as launchers on the
// context's stream. Every result equals that of kernels/cpu (quant.h, reference.h) bit for bit, because sums run in the
// oracle's order.
//
// Shapes are [rows, ...] with row strides in elements; rows = 0 is legal. Positions and other per-row integers are
// device arrays. x and y may be the same array where both are bf16 with the same stride. Rows need no alignment beyond
// their element's; 16-byte aligned rows are faster.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

// 3.4, blocks of 32 (the last may be shorter). y = dequantised act_quant(x), exact in bf16: the operand of a W8A8 or
// W4A8 product in bf16.
void act_quant_dequant_rows(CudaContext&, const bf16* x, int64_t ldx, int64_t rows, int64_t k, bf16* y, int64_t ldy);
// 3.4 as codes q [rows, k] and scales [rows, ceil(k / 32)].
void act_quant_rows(CudaContext&, const bf16* x, int64_t ldx, int64_t rows, int64_t k, e4m3* q, int64_t ldq,
                    e8m0* scale, int64_t lds);

// 3.6: y = bf16(w * (x * rsqrt(mean(x^2) + eps))). n is even.
void rms_norm_rows(CudaContext&, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n, float eps, bf16* y,
                   int64_t ldy);
// The same, and the operand of the quantised product that follows: quantised = act_quant_dequant(y), dense [rows, n].
// n % 32 == 0.
void rms_norm_quant_rows(CudaContext&, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n, float eps,
                         bf16* y, int64_t ldy, bf16* quantised);

// 6.2 on the last rope_dim of each of the row's heads, in place: x [rows, heads, head_dim] dense, position [rows].
// inverse: by the conjugate (6.8).
void rope_rows(CudaContext&, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t heads,
               int32_t head_dim, bf16* x, bool inverse);

// 6.4 after the product: window = act_quant(rope(RMSNorm(kv))) as rows of WindowRow{head_dim}; kv [rows, head_dim].
// head_dim % 32 == 0.
void window_rows(CudaContext&, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t head_dim,
                 const bf16* kv, const bf16* norm, float eps, std::byte* out);

// 6.6: index queries after their product: rope on the last rope_dim of each head, then fp4_act_quant of blocks of 32.
// x [rows, heads, dim], 16-byte aligned; dim % 32 == 0. Any of the outputs may be null: codes [rows, heads, dim / 2],
// scales [rows, heads, dim / 32], values [rows, heads, dim] dequantised (exact in bf16; may be x).
void rope_fp4_rows(CudaContext&, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t heads,
                   int32_t dim, const bf16* x, uint8_t* codes, e8m0* scales, bf16* values);

// 6.5, the last step: for every row t of the step that completes a compressed row j ((position + 1) % ratio == 0,
// j = position / ratio), writes both planes of row j of its sequence: the index key
// fp4(rope(RMSNorm(key[t], k_norm))) with e8m0 scales, and the row fp4(rope(latent[t])) with e4m3 scales, both rotated
// at position j * ratio. latent [T, head_dim] normalised and unrotated; key [T, key_dim] as linear(latent, wk) gave it.
// Other rows of latent and key are not read. key_dim % 64 == 0, head_dim % 32 == 0.
void write_cache_rows(CudaContext&, const StepView& step, const RopeTable& rope, const bf16* latent, const bf16* key,
                      const bf16* k_norm, float eps, const SourceCache& cache);

}  // namespace mdi::cuda
