// The operations that the network is made of, each with its maths, shapes and rounding points.
//
// An operation is a stage: what one pass over memory can do on a GPU. There are two implementations behind one table of
// functions: kernels/cpu (the oracle: a composition of the small reference functions of its headers) and kernels/cuda.
//
// Rules for every operation
//  - Pointers are memory of the context's device. Matrices are dense and row-major. T is StepView::rows; T = 0 is
//  legal.
//  - A row's result does not depend on the other rows, on T, or on which kernel the stage picked.
//  - Reads nothing that the contract does not name: other rows, index -1, rows past a count and padding may hold NaN.
//  - bf16(x), e4m3(x), e2m1(x) mean rounding to nearest even; everything else is fp32. Section numbers are those of the
//    model specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/dtype.h"
#include "core/tensor.h"
#include "kernels/cache_layout.h"

namespace mdi {

struct Ops;
struct SampleArgs;       // kernels/sample.h
struct PlaceTokensArgs;  // likewise

inline constexpr int kMaxDraftRows = 16;  // new rows a sequence of a draft block

// Called with a stage's inner rounding points (host memory, valid during the call) when a test or `mdi check` asks.
using Tap = std::function<void(std::string_view name, int layer, const TensorView& value)>;

// The parts of an operation that are stages of their own to whoever measures (engine/stages.h).
enum class OpPart : uint8_t { kIndexQueries, kIndexScores, kIndexSelection, kDispatch, kExpertProducts, kCombine };

// What an operation runs on: a thread pool or a stream with its workspace. Backends derive from it.
struct Context {
  const Ops* ops = nullptr;
  Tap tap;         // empty: nothing is dumped
  int layer = -1;  // for the tap and for error messages
  // Called by the calling thread where a part of an operation begins; empty: nobody measures. It may put work on the
  // context, as a mark, but not wait for it.
  std::function<void(OpPart)> on_part;
  void begin_part(OpPart part) const {
    if (on_part) on_part(part);
  }
  virtual ~Context() = default;
};

// ---- weights --------------------------------------------------------------------------------------------------------
enum class WeightKind : uint8_t {
  kE4M3,  // data e4m3 [n, k], scale e8m0 [ceil(n/32), ceil(k/32)]; the input is act_quantised (W8A8)
  kE2M1,  // data two codes a byte [n, k/2], scale e8m0 [n, k/32]; the input is act_quantised (W4A8)
  kBF16,  // data bf16 [n, k]; the input is used as it is
  kF32,   // data fp32 [n, k]; the input is used as it is
};

// y[n] = sum_k x[k] * w[n, k]. `data` and `scale` are as in the checkpoint.
struct LinearWeight {
  WeightKind kind = WeightKind::kBF16;
  const void* data = nullptr;
  const e8m0* scale = nullptr;
  int64_t n = 0, k = 0;
};

// w1 and w3 [inter, dim], w2 [dim, inter].
struct ExpertWeights {
  LinearWeight w1, w2, w3;
};

// Hyper-connection parameters of one sublayer (5.3). m = (2 + hc) * hc.
struct HcWeights {
  const float* fn = nullptr;     // [m, hc * dim]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [m]
};

// Rotary frequencies (6.2): inv_freq [rope_dim / 2]; the angle is fl32(fl32(position) * inv_freq[i]).
struct RopeTable {
  const float* inv_freq = nullptr;
  int32_t rope_dim = 0;
};

// ---- the step -------------------------------------------------------------------------------------------------------
// Which tokens are new and where their sequences' state lies. Rows of one sequence are consecutive, in ascending
// position. A layer range that computes fewer rows (bounded replay) gets a view of those rows only.
struct StepView {
  int32_t rows = 0;                      // T
  int32_t sequences = 0;                 // S
  const int32_t* token = nullptr;        // [T]
  const int32_t* position = nullptr;     // [T] absolute, 0-based
  const int32_t* seq_of_row = nullptr;   // [T] 0..S-1
  const uint8_t* dead = nullptr;         // [T] 1: inside an image span
  const int32_t* seq_slot = nullptr;     // [S] state slot
  const int32_t* seq_start = nullptr;    // [S] position of the first new token
  const int32_t* seq_row = nullptr;      // [S] row of the first new token
  const int32_t* seq_count = nullptr;    // [S] new tokens
  const int32_t* seq_floor = nullptr;    // [S] windows see nothing older than this position (0 unless replayed)
  const int32_t* block_table = nullptr;  // [S, max_blocks] block ids
  int32_t max_blocks = 0;
};

// One KV source's rows in the paged pool: compressed row j of sequence s is row j % layout.rows of the block
// block_table[s, j / layout.rows].
struct SourceCache {
  std::byte* blocks = nullptr;
  int64_t block_bytes = 0;
  SourceLayout layout;
};

// The window rings of one layer: position p of slot s is at base + s * slot_stride + (p % window) * row bytes.
struct RingView {
  std::byte* base = nullptr;
  int64_t slot_stride = 0;
  int32_t window = 0;
  WindowRow row;
};

// ---- arguments of the stages ----------------------------------------------------------------------------------------

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

// Expert choice (7). index: by falling biased score, ties to the lower expert; weight: normalised, times route_scale.
// Tap: gate_scores_biased.
struct RouteArgs {
  int32_t experts = 0, topk = 0;
  float route_scale = 0, gate_temp = 1;
  const bf16* x = nullptr;  // [T, dim]
  LinearWeight gate;        // kBF16 [experts, dim], computed in fp32
  const float* bias = nullptr;
  const float* bias_vl = nullptr;  // for dead rows; null: text-only model
  int32_t* index = nullptr;        // out [T, topk]
  float* weight = nullptr;         // out [T, topk]
};

// sum[t] = sum over this rank's chosen experts, in ascending id, of fp32(expert(x)) with the routing weight applied
// before w2 (7). Experts [first, first + count) are local; others contribute nothing.
struct RoutedExpertsArgs {
  int32_t topk = 0, first = 0, count = 0;
  int32_t experts_total = 0;  // of all ranks, to guess how many rows a local one gets (0: count): speed, not results
  float swiglu_limit = 0;
  const bf16* x = nullptr;                 // [T, dim]
  const int32_t* index = nullptr;          // [T, topk]
  const float* weight = nullptr;           // [T, topk]
  const ExpertWeights* experts = nullptr;  // host array [count]
  float* sum = nullptr;                    // out [T, dim]
};

// y = bf16(sum + fp32(shared(x))) (7).
struct SharedExpertArgs {
  float swiglu_limit = 0;
  const bf16* x = nullptr;  // [T, dim]
  ExpertWeights weights;
  const float* sum = nullptr;  // [T, dim]
  bf16* y = nullptr;           // out [T, dim]
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

// y = RMSNorm(linear(x, w)) (dspark.md 1).
struct LinearNormArgs {
  float eps = 0;
  const bf16* x = nullptr;  // [T, w.k]
  LinearWeight w;
  const bf16* norm = nullptr;  // [w.n]
  bf16* y = nullptr;           // out [T, w.n]
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

// One link of the draft's bigram chain and its confidence (dspark.md 4), for one block row of each sequence:
// logits = base + fp32(embed[token]) . head, confidence = (z, embed[token]) . proj, all fp32.
struct MarkovArgs {
  int32_t sequences = 0, dim = 0, rank = 0;
  const int32_t* token = nullptr;  // [sequences]
  const bf16* embed = nullptr;     // [vocab, rank]
  LinearWeight head;               // kBF16 [vocab, rank]
  LinearWeight confidence_proj;    // kBF16 [1, dim + rank]
  const float* base = nullptr;     // sequence s: base + s * base_stride
  int64_t base_stride = 0;
  const bf16* z = nullptr;  // sequence s: z + s * z_stride, [dim]
  int64_t z_stride = 0;
  float* logits = nullptr;      // out [sequences, vocab]
  float* confidence = nullptr;  // out [sequences]
};

// data[i] = data[index[i]] for i = 0 .. rows - 1, in place: keeps some rows of an array. index ascends, so index[i] >=
// i and no row is written before it is read.
struct KeepRowsArgs {
  int32_t rows = 0;
  const int32_t* index = nullptr;  // [rows]
  void* data = nullptr;            // [max(index) + 1, row_bytes]
  int64_t row_bytes = 0;           // a multiple of 4
};

// Makes the first accepted[s] new tokens of each sequence permanent in one layer's ring: the last min(accepted, window)
// of them are copied to their slots.
struct CommitRingArgs {
  const int32_t* accepted = nullptr;       // [S] 0..seq_count
  const std::byte* window_rows = nullptr;  // [T]
  RingView ring;
};

// pending[slot] = step_pending of the last accepted token, for the sequences whose new length is odd.
struct CommitPendingArgs {
  const int32_t* accepted = nullptr;
  int32_t head_dim = 0;
  const float* step_pending = nullptr;  // [T, 2, head_dim]
  float* pending = nullptr;
  int64_t pending_stride = 0;
};

// history[slot] shifts by accepted[s] and takes the accepted tokens' compressed ids, newest first.
struct CommitHistoryArgs {
  const int32_t* accepted = nullptr;
  int32_t depth = 0;                    // ngram - 1
  const int32_t* compressed = nullptr;  // [T]
  int32_t* history = nullptr;           // [slots, depth]
};

// ---- arguments of the vision tower's stages (vision.md 2, 3) --------------------------------------------------------
// Rows are the patches of one image, in reading order; a row's result may depend on all of them (attention), on nothing
// outside the image.

// y = bf16(fp32(x) . w + bias), then bf16(gelu(y)) or bf16(residual + y). The exact (erf) GELU.
struct VisionLinearArgs {
  int64_t rows = 0;
  const bf16* x = nullptr;         // [rows, w.k]
  LinearWeight w;                  // kBF16
  const bf16* bias = nullptr;      // [w.n] or null
  bool gelu = false;               // not with a residual
  const bf16* residual = nullptr;  // [rows, w.n] or null; may be y
  bf16* y = nullptr;               // out [rows, w.n]
};

// y = RMSNorm(x) (3.6).
struct VisionNormArgs {
  int64_t rows = 0;
  int32_t dim = 0;
  float eps = 0;
  const bf16* x = nullptr;       // [rows, dim]
  const bf16* weight = nullptr;  // [dim]
  bf16* y = nullptr;             // out [rows, dim]
};

// Attention of every patch to every patch. q and k are rotated first, in fp32, and rounded to bf16: the head in halves
// (a, b) becomes (a cos - b sin, b cos + a sin), with the angles of the patch's row, then those of its column. Scores
// times head_dim^-0.5, softmax and the product with v in fp32, rounded once (unlike 6.7, which rounds the weights).
struct VisionAttentionArgs {
  int64_t rows = 0;
  int32_t columns = 0;  // patches a row of the image
  int32_t heads = 0, head_dim = 0;
  RopeTable rope;             // rope_dim = head_dim / 2: a quarter of the head for each of row and column
  const bf16* qkv = nullptr;  // [rows, 3, heads, head_dim]
  bf16* o = nullptr;          // out [rows, heads, head_dim]
};

// y = bf16(bf16(silu(gate)) * up).
struct VisionGateArgs {
  int64_t rows = 0;
  int32_t inter = 0;
  const bf16* gate_up = nullptr;  // [rows, 2, inter]
  bf16* y = nullptr;              // out [rows, inter]
};

// Windows of side x side patches, channel major: y[window, c * side^2 + dy * side + dx]; zeros past the right and the
// bottom edge.
struct VisionWindowsArgs {
  int32_t patch_rows = 0, patch_cols = 0, side = 0, dim = 0;
  const bf16* x = nullptr;  // [patch_rows, patch_cols, dim]
  bf16* y = nullptr;        // out [ceil(patch_rows / side) * ceil(patch_cols / side), dim * side^2]
};

// ---- the table ------------------------------------------------------------------------------------------------------
struct Ops {
  std::string_view name;  // "cpu", "cuda"

  void* (*allocate)(Context&, int64_t bytes);  // zeroed; throws mdi::Error when there is no room
  void (*release)(Context&, void*);
  void (*copy_in)(Context&, void* device, const void* host, int64_t bytes);
  void (*copy_out)(Context&, void* host, const void* device, int64_t bytes);
  // Host memory that copy() reaches without staging (pinned, with a GPU). Throws mdi::Error when there is no room.
  void* (*allocate_host)(Context&, int64_t bytes);
  void (*release_host)(Context&, void*);
  // Device memory to device memory, or to or from allocate_host's. Runs in the order of the context's other work and
  // does not wait for it: whoever looks at the host memory himself calls copy_out of something first. No overlap.
  void (*copy)(Context&, void* to, const void* from, int64_t bytes);

  void (*embed)(Context&, const StepView&, const EmbedArgs&);
  void (*engram_hash)(Context&, const StepView&, const EngramHashArgs&);
  void (*engram)(Context&, const StepView&, const EngramArgs&);
  void (*hc_collapse)(Context&, const StepView&, const HcCollapseArgs&);
  void (*hc_expand)(Context&, const StepView&, const HcExpandArgs&);
  void (*attention_input)(Context&, const StepView&, const AttentionInputArgs&);
  void (*compress)(Context&, const StepView&, const CompressArgs&);
  void (*index_select)(Context&, const StepView&, const IndexSelectArgs&);
  void (*sparse_attention)(Context&, const StepView&, const SparseAttentionArgs&);
  void (*attention_output)(Context&, const StepView&, const AttentionOutputArgs&);
  void (*route)(Context&, const StepView&, const RouteArgs&);
  void (*routed_experts)(Context&, const StepView&, const RoutedExpertsArgs&);
  void (*shared_expert)(Context&, const StepView&, const SharedExpertArgs&);
  void (*mean_copies)(Context&, const StepView&, const MeanCopiesArgs&);
  void (*head)(Context&, const StepView&, const HeadArgs&);
  void (*linear_norm)(Context&, const StepView&, const LinearNormArgs&);
  void (*window_rows)(Context&, const StepView&, const WindowRowsArgs&);
  void (*markov)(Context&, const MarkovArgs&);
  void (*keep_rows)(Context&, const KeepRowsArgs&);
  void (*commit_ring)(Context&, const StepView&, const CommitRingArgs&);
  void (*commit_pending)(Context&, const StepView&, const CommitPendingArgs&);
  void (*commit_history)(Context&, const StepView&, const CommitHistoryArgs&);
  void (*sample)(Context&, const SampleArgs&);
  void (*place_tokens)(Context&, const PlaceTokensArgs&);

  // Null in a backend that does not run the vision tower.
  void (*vision_linear)(Context&, const VisionLinearArgs&);
  void (*vision_norm)(Context&, const VisionNormArgs&);
  void (*vision_attention)(Context&, const VisionAttentionArgs&);
  void (*vision_gate)(Context&, const VisionGateArgs&);
  void (*vision_windows)(Context&, const VisionWindowsArgs&);

  // Keeps the operations that `work` calls, instead of running them, to run them again with the same arguments: the
  // arrays that device pointers name are read then, those of the host (experts) and all numbers are kept as they are.
  // `work` may allocate nothing and copy nothing to or from the host, and its operations must have run before with the
  // same shapes. Throws what it throws. Null in a backend that keeps nothing.
  void* (*record)(Context&, const std::function<void()>& work) = nullptr;
  void (*run_recorded)(Context&, void* recorded) = nullptr;  // in the order of the context's other work
  void (*release_recorded)(Context&, void* recorded) = nullptr;

  // Begins a shared_expert that follows with the same x and weights, after other operations that leave x alone: what
  // does not need `sum` may run beside them. Null in a backend that runs one thing at a time.
  void (*begin_shared_expert)(Context&, const StepView&, const SharedExpertArgs&) = nullptr;

  // A mark notes a place in the order of the context's work; wait_mark returns when all that was asked for before
  // set_mark is done, and what was asked for later may still run. One that was never set is never waited for. Null in a
  // backend whose operations are done when they return.
  void* (*make_mark)(Context&) = nullptr;
  void (*set_mark)(Context&, void* mark) = nullptr;
  void (*wait_mark)(Context&, void* mark) = nullptr;
  void (*release_mark)(Context&, void* mark) = nullptr;

  // A time mark is a mark that knows when the context's work got there. Setting one allocates nothing and waits for
  // nothing; set while work is recorded, it is set anew by each run. passed_mark: whether the work got there; does not
  // wait. seconds_between: of two that were passed, the earlier one first. Null where make_mark is.
  void* (*make_time_mark)(Context&) = nullptr;
  bool (*passed_mark)(Context&, void* mark) = nullptr;
  double (*seconds_between)(Context&, void* from, void* to) = nullptr;
};

}  // namespace mdi
