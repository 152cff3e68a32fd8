// Quantisers and norms of the CPU backend, one row at a time (spec 3.4 to 3.6). The reference for every other backend.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace mdi::cpu {

// 3.4: blocks of 32 (the last may be shorter). q [k], scale [ceil(k/32)].
void act_quant(const bf16* x, int64_t k, e4m3* q, e8m0* scale);
void act_dequant(const e4m3* q, const e8m0* scale, int64_t k, bf16* x);  // exact
void act_dequant(const e4m3* q, const e8m0* scale, int64_t k, float* x);
// act_quant and act_dequant in one: the operand of a W8A8 or W4A8 product. x and y may be the same.
void act_quant_dequant(const bf16* x, int64_t k, bf16* y);

// 3.5, indexer: blocks of 32, e8m0 scales. packed [k/2], scale [k/32].
void fp4_quant_e8m0(const bf16* x, int64_t k, uint8_t* packed, e8m0* scale);
void fp4_dequant_e8m0(const uint8_t* packed, const e8m0* scale, int64_t k, float* x);
// 3.5, compressed KV: groups of 16, e4m3 scales (saturating above 448). packed [k/2], scale [k/16].
void fp4_quant_e4m3(const bf16* x, int64_t k, uint8_t* packed, e4m3* scale);
void fp4_dequant_e4m3(const uint8_t* packed, const e4m3* scale, int64_t k, float* x);

// 3.6: y = bf16(w * (x * rsqrt(mean(x^2) + eps))). x and y may be the same.
void rms_norm(const bf16* x, const bf16* w, int64_t n, float eps, bf16* y);

}  // namespace mdi::cpu
