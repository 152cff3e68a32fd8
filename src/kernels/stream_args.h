// Arguments of the operations on the residual stream (ops.h): embedding, engram, hyper-connections, head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// h[t, c, :] = table[token[t]] for every copy c; pre[t] = (1, 0, ..., 0) (5.1). Rows with override_of[t] >= 0 take
// override_rows[override_of[t]] instead (image features and delimiters).
struct EmbedArgs {
  int32_t dim = 0, hc = 0;
  const bf16* table = nullptr;           // [vocab, dim]
  const bf16* override_rows = nullptr;   // [n, dim] or null
  const int32_t* override_of = nullptr;  // [T], -1: none; or null
  bf16* h = nullptr;                     // out [T, hc, dim]
  float* pre = nullptr;                  // out [T, hc]
};

// Table rows of the n-grams that end at each token (engram.md 4). compressed[t] is also the value that the history
// keeps.
struct EngramHashArgs {
  int32_t ngram = 0, heads = 0;          // n-grams of 2..ngram; columns = (ngram - 1) * heads
  const int32_t* token_map = nullptr;    // [vocab] compressed ids
  int32_t pad = 0;                       // compressed id of the pad token
  const int64_t* multipliers = nullptr;  // [ngram]
  const int64_t* primes = nullptr;       // [columns]
  const int64_t* offsets = nullptr;      // [columns]
  const int32_t* history = nullptr;      // [slots, ngram - 1], newest first; -1: before the start, or dead
  int32_t* compressed = nullptr;         // out [T]: compressed id, -1 for dead tokens
  int64_t* rows = nullptr;               // out [T, columns]
};

// Lookup, projection, gate, addition into the copies (engram.md 5). h is updated in place: one rounding at the end.
struct EngramArgs {
  int32_t dim = 0, hc = 0, columns = 0, head_dim = 0;
  float eps = 0;
  const int64_t* rows = nullptr;      // [T, columns]
  const e4m3* table = nullptr;        // [table rows, head_dim]
  const e8m0* table_scale = nullptr;  // [table rows, head_dim / 32]
  LinearWeight wkv;                   // [(hc + 1) * dim, columns * head_dim]
  const bf16* q_weight = nullptr;     // [hc, dim]
  const bf16* k_weight = nullptr;     // [hc, dim]
  bf16* h = nullptr;                  // in and out [T, hc, dim]
};

// Mixes of the stream, collapse with the carried mix, RMSNorm (5.2, 5.3, 5.4).
struct HcCollapseArgs {
  int32_t dim = 0, hc = 0, sinkhorn_iters = 0;
  float eps = 0, norm_eps = 0;    // hc_eps; the norms' eps
  const bf16* h = nullptr;        // [T, hc, dim]
  const float* pre_in = nullptr;  // [T, hc] the mix carried in
  HcWeights weights;
  const bf16* norm = nullptr;  // [dim]
  bf16* x = nullptr;           // out [T, dim] = RMSNorm(hc_pre(h, pre_in))
  float* pre_out = nullptr;    // out [T, hc] the mix to carry on
  float* post = nullptr;       // out [T, hc]
  float* comb = nullptr;       // out [T, hc, hc], row = source copy
};

// h[k] = bf16(post[k] * y + sum_i comb[i][k] * h[i]) (5.4), in place.
struct HcExpandArgs {
  int32_t dim = 0, hc = 0;
  const bf16* y = nullptr;      // [T, dim]
  const float* post = nullptr;  // [T, hc]
  const float* comb = nullptr;  // [T, hc, hc]
  bf16* h = nullptr;            // in and out [T, hc, dim]
};

// out[t] = bf16(mean over the copies of h[t]) (5.2, main_hidden); row stride of out in elements.
struct MeanCopiesArgs {
  int32_t dim = 0, hc = 0;
  const bf16* h = nullptr;  // [T, hc, dim]
  bf16* out = nullptr;
  int64_t out_stride = 0;
};

// logits[i] = fp32(RMSNorm(hc_pre(h[row], pre[row]))) . head, for row = sample_rows[i] (5.2).
struct HeadArgs {
  int32_t dim = 0, hc = 0, samples = 0;
  float eps = 0;
  const int32_t* sample_rows = nullptr;  // [samples] rows of the step
  const bf16* h = nullptr;
  const float* pre = nullptr;
  const bf16* norm = nullptr;  // [dim]
  LinearWeight head;           // kBF16 [vocab, dim], fp32 out
  bf16* z = nullptr;           // out [samples, dim], hc_pre before the norm; or null
  float* logits = nullptr;     // out [samples, vocab]
};

}  // namespace mdi
