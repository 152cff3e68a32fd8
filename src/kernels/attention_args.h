// Arguments of the operations of attention (ops.h): projections, compressed rows, selection, the attention itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// Queries and window rows (6.3, 6.4): qr = RMSNorm(linear(x, wq_a)); q = linear(qr, wq_b) with rope on the last
// rope_dim of each head; window = act_quant(rope(RMSNorm(linear(x, wkv)))).
struct AttentionInputArgs {
  int32_t heads = 0, head_dim = 0;
  float eps = 0;
  const bf16* x = nullptr;  // [T, dim]
  LinearWeight wq_a, wq_b, wkv;
  const bf16* q_norm = nullptr;   // [q_rank]
  const bf16* kv_norm = nullptr;  // [head_dim]
  RopeTable rope;
  bf16* qr = nullptr;                // out [T, q_rank]
  bf16* q = nullptr;                 // out [T, heads, head_dim]
  std::byte* window_rows = nullptr;  // out [T] rows of WindowRow{head_dim}; null: not wanted
};

// Window rows alone (6.4): act_quant(rope(RMSNorm(linear(x, wkv)))). For the draft stages' rings, x is main_x.
struct WindowRowsArgs {
  float eps = 0;
  const bf16* x = nullptr;  // [T, dim]
  LinearWeight wkv;         // [head_dim, dim]
  const bf16* norm = nullptr;
  RopeTable rope;
  std::byte* rows = nullptr;  // out [T] rows of WindowRow{wkv.n}
};

// Compressed rows and index keys of one KV source (6.5), written to rows that no query of an earlier step sees.
// ratio 1: latent_p = RMSNorm(bf16 x . wkv). ratio 2: a, g in fp32, softmax over the two g of a pair per channel.
// Tap: latent [completed, head_dim].
struct CompressArgs {
  float eps = 0;
  const bf16* x = nullptr;       // [T, dim]
  LinearWeight wkv, wgate;       // [head_dim, dim]; wgate.data is null at ratio 1
  const bf16* norm = nullptr;    // [head_dim]
  LinearWeight wk;               // [key_dim, head_dim]
  const bf16* k_norm = nullptr;  // [key_dim]
  RopeTable rope;
  const float* pending =
      nullptr;                 // ratio 2: [slots] of (a[head_dim], g[head_dim]) of an odd tail; read only where needed
  int64_t pending_stride = 0;  // floats between slots
  float* step_pending = nullptr;  // ratio 2: out [T, 2, head_dim], (a, g) of each new token, for commit
  SourceCache cache;
};

enum class IndexMode : uint8_t { kPlain, kCandidateSource, kFiltered };

// Index scores and both selections (6.6), over the V(p) = (p + 1) / ratio visible rows of each query.
// Ties: the lower position wins. Tap: index_scores, one call a row.
struct IndexSelectArgs {
  int32_t heads = 0, key_dim = 0, topk = 0;
  int32_t candidate_blocks = 0, candidate_block_size = 0;
  IndexMode mode = IndexMode::kPlain;
  const bf16* x = nullptr;   // [T, dim]
  const bf16* qr = nullptr;  // [T, q_rank]
  LinearWeight wq_b, weights_proj;
  RopeTable rope;
  SourceCache cache;
  int32_t* candidates = nullptr;  // [T, candidate_blocks] ascending block ids, then -1: out (source) or in (filtered)
  int32_t* selected = nullptr;    // out [T, topk] ascending compressed positions, then -1
};

// Attention over the window and the selected rows, with a sink (6.7). Keys are values. Order of accumulation: window
// positions p - window + 1 .. p, then `selected` in its order, in blocks of 64. At ratio 0 `selected` is null.
// The step's row arrays name the queries, its sequence arrays the window rows: there may be more rows than queries
// (bounded replay, 13).
struct SparseAttentionArgs {
  int32_t heads = 0, head_dim = 0, topk = 0;
  // A draft block (dspark.md 3) is not causal: every query's keys are the last `window` positions before seq_start,
  // then all new rows of its sequence (at most kMaxDraftRows).
  bool whole_block = false;
  float scale = 0;
  const bf16* q = nullptr;                 // [T, heads, head_dim]
  const float* sink = nullptr;             // [heads]
  const std::byte* window_rows = nullptr;  // [T] the step's own rows of this layer
  RingView ring;                           // rows of positions before seq_start
  const int32_t* selected = nullptr;       // [T, topk], -1: none
  SourceCache cache;
  bf16* o = nullptr;  // out [T, heads, head_dim]
};

// Inverse rope, grouped wo_a in bf16, wo_b (6.8). `o` is rotated back in place.
struct AttentionOutputArgs {
  int32_t heads = 0, head_dim = 0, groups = 0, o_rank = 0;
  bf16* o = nullptr;  // [T, heads, head_dim]
  LinearWeight wo_a;  // kE4M3 storage [groups * o_rank, heads / groups * head_dim], used as bf16: no act_quant
  LinearWeight wo_b;  // [dim, groups * o_rank]
  RopeTable rope;
  bf16* y = nullptr;  // out [T, dim]
};

}  // namespace mdi
