// The small reference functions that the CPU stages are composed of, one row (token) at a time. Section numbers are
// those of the model specification. Nothing here knows of steps, slots or threads.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace mdi::cpu {

// ---- rope (6.2) -----------------------------------------------------------------------------------------------------
// Frequencies for rope_dim / 2 pairs. original_seq_len 0: no YaRN.
struct RopeParameters {
  int32_t rope_dim = 0;
  double theta = 0, factor = 1, beta_fast = 32, beta_slow = 1;
  int64_t original_seq_len = 0;
};
void rope_frequencies(const RopeParameters& p, float* inv_freq);
// cos and sin of fl32(fl32(position) * inv_freq[i]); cos_sin [rope_dim / 2][2].
void rope_angles(const RopeTable& table, int32_t position, float* cos_sin);
// Rotates the last rope_dim of x[n] in place, adjacent pairs, rounding to bf16; inverse: by the conjugate.
void rope_apply(const float* cos_sin, int32_t rope_dim, bf16* x, int64_t n, bool inverse);

// ---- hyper-connections (5.3, 5.4) -----------------------------------------------------------------------------------
// mixes [(2 + hc) * hc], already times r, to pre [hc], post [hc], comb [hc, hc].
void hc_split(const float* mixes, const float* scale, const float* base, int32_t hc, int32_t iters, float eps,
              float* pre, float* post, float* comb);
float hc_rms(const bf16* h, int64_t n, float eps);  // rsqrt(mean(h^2) + eps)
void hc_pre(const bf16* h, const float* pre, int32_t hc, int32_t dim, bf16* x);
void hc_post(const bf16* y, const bf16* h, const float* post, const float* comb, int32_t hc, int32_t dim, bf16* out);

// ---- experts (7) ----------------------------------------------------------------------------------------------------
// z [experts] router products; scores s = sqrt(softplus(z / gate_temp)); biased [experts] = s + bias is scratch and
// output.
void gate_select(const float* z, const float* bias, int32_t experts, int32_t topk, float route_scale, float gate_temp,
                 float* biased, int32_t* index, float* weight);
// t = bf16(weight * (silu(min(g, limit)) * clamp(u, -limit, limit))).
void swiglu(const bf16* gate, const bf16* up, int64_t n, float limit, float weight, bf16* t);

// ---- compressor (6.5) -----------------------------------------------------------------------------------------------
// Softmax over the two gates of a pair, per channel: l = bf16(w0 * a0 + w1 * a1).
void compress_pair(const float* a0, const float* g0, const float* a1, const float* g1, int64_t n, bf16* l);

// ---- indexer (6.6) --------------------------------------------------------------------------------------------------
// Scores of n keys for one query: iq [heads, key_dim] dequantised, w [heads] (already times 2^-6, bf16 values), keys
// [n, key_dim] dequantised; out [n].
void index_scores(const float* iq, const float* w, const float* keys, int64_t n, int32_t heads, int32_t key_dim,
                  bf16* out);
// The k largest of scores[n], lower position first among equals, ascending, then -1. positions[i] is the position of
// scores[i], ascending (null: i itself). Entries of -inf are never chosen. NaN counts as the smallest value.
void select_topk(const bf16* scores, const int32_t* positions, int64_t n, int32_t k, int32_t* out);
// Candidate blocks of a query that sees `visible` positions: out [keep] ascending block ids, then -1.
void select_candidates(const bf16* scores, int64_t visible, int32_t block_size, int32_t keep, int32_t* out);

// ---- attention (6.7) ------------------------------------------------------------------------------------------------
// kv [n, head_dim] rows in order of accumulation, valid[i] 0: index -1 (the row is not read). q, o [heads, head_dim].
void attend(const bf16* q, const float* kv, const uint8_t* valid, int64_t n, const float* sink, float scale,
            int32_t heads, int32_t head_dim, bf16* o);

// ---- engram (engram.md 4, 5) ----------------------------------------------------------------------------------------
// context [ngram]: compressed ids of positions p, p-1, ...; -1: dead or before the start (sticky). rows [columns].
void engram_hash_row(const int32_t* context, int32_t ngram, int32_t heads, int32_t pad, const int64_t* multipliers,
                     const int64_t* primes, const int64_t* offsets, int64_t* rows);
// e [columns * head_dim] bf16, exact.
void engram_lookup(const int64_t* rows, int32_t columns, int32_t head_dim, const e4m3* table, const e8m0* scale,
                   bf16* e);
// kv [(hc + 1) * dim] bf16 of one token; h [hc, dim] in place. Dead tokens are not passed here: their gate is 0.
void engram_gate_add(const bf16* kv, const bf16* q_weight, const bf16* k_weight, int32_t hc, int32_t dim, float eps,
                     bf16* h);

}  // namespace mdi::cpu
