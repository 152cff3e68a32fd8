#include "model/layer.h"

#include <algorithm>
#include <cmath>

namespace mdi {

namespace {

// Keeps the rows of an array that the upper layers compute.
void keep(const Pass& p, const DeviceBuffer& rows, size_t row_bytes) {
  p.ops().keep_rows(p.context, {.rows = p.buffers.upper.rows,
                                .index = p.buffers.kept_rows,
                                .data = rows.as<std::byte>(),
                                .row_bytes = static_cast<int64_t>(row_bytes)});
}

void engram(const Pass& p, int layer) {
  const auto index = static_cast<size_t>(p.config.engram_index(layer));
  const StepBuffers::Hash& hash = p.buffers.hashes[index];
  const EngramWeights& w = p.model.layer(layer).engram;
  auto* rows = p.buffers.engram_rows.as<int64_t>();
  p.ops().engram_hash(p.context, p.buffers.view,
                      {.ngram = p.config.engram_max_ngram_size,
                       .heads = p.config.engram_n_heads,
                       .token_map = p.buffers.token_map,
                       .pad = p.model.token_map[static_cast<size_t>(p.config.engram_pad_id)],
                       .multipliers = hash.multipliers,
                       .primes = hash.primes,
                       .offsets = hash.offsets,
                       .history = p.state.history.as<int32_t>(),
                       .compressed = p.buffers.compressed.as<int32_t>(),
                       .rows = rows});
  // A dropped token is still part of the n-grams behind it, and of the history.
  if (p.step.rows < p.buffers.view.rows) keep(p, p.buffers.engram_rows, p.config.engram_columns() * sizeof(int64_t));
  p.show("engram_hash_ids", DType::kI64, rows, {p.step.rows, p.config.engram_columns()});
  p.ops().engram(p.context, p.step,
                 {.dim = p.config.dim,
                  .hc = p.config.hc_mult,
                  .columns = p.config.engram_columns(),
                  .head_dim = p.config.engram_head_dim,
                  .eps = p.config.norm_eps,
                  .rows = rows,
                  .table = w.table,
                  .table_scale = w.scale,
                  .wkv = w.wkv,
                  .q_weight = w.q_weight,
                  .k_weight = w.k_weight,
                  .h = p.buffers.h.as<bf16>()});
  p.show_stream("engram_out");
}

void collapse(const Pass& p, const HcWeights& weights, const bf16* norm, const DeviceBuffer& pre_in,
              const DeviceBuffer& pre_out) {
  p.ops().hc_collapse(p.context, p.step,
                      {.dim = p.config.dim,
                       .hc = p.config.hc_mult,
                       .sinkhorn_iters = p.config.hc_sinkhorn_iters,
                       .eps = p.config.hc_eps,
                       .norm_eps = p.config.norm_eps,
                       .h = p.buffers.h.as<bf16>(),
                       .pre_in = pre_in.as<float>(),
                       .weights = weights,
                       .norm = norm,
                       .x = p.buffers.x.as<bf16>(),
                       .pre_out = pre_out.as<float>(),
                       .post = p.buffers.post.as<float>(),
                       .comb = p.buffers.comb.as<float>()});
}

void expand(const Pass& p) {
  p.ops().hc_expand(p.context, p.step,
                    {.dim = p.config.dim,
                     .hc = p.config.hc_mult,
                     .y = p.buffers.y.as<bf16>(),
                     .post = p.buffers.post.as<float>(),
                     .comb = p.buffers.comb.as<float>(),
                     .h = p.buffers.h.as<bf16>()});
}

// A source layer's new compressed rows and index keys.
void compress(const Pass& p, int layer) {
  const AttentionWeights& w = p.model.layer(layer).attn;
  const int source = p.model.source_index(layer);
  p.ops().compress(p.context, p.step,
                   {.eps = p.config.norm_eps,
                    .x = p.buffers.x.as<bf16>(),
                    .wkv = w.compressor_wkv,
                    .wgate = w.compressor_wgate,
                    .norm = w.compressor_norm,
                    .wk = w.indexer_wk,
                    .k_norm = w.indexer_k_norm,
                    .rope = p.rope(layer),
                    .pending = p.state.pending_of(source),
                    .pending_stride = p.state.pending_stride(),
                    .step_pending = p.step_pending(source),
                    .cache = p.state.source(source)});
}

// Selects rows for this layer and for the layers that reuse its list. Layers above the candidate source that run an
// indexer score its candidates only.
void select(const Pass& p, int layer) {
  const AttentionWeights& w = p.model.layer(layer).attn;
  IndexMode mode = IndexMode::kPlain;
  if (p.config.candidate_source_layer >= 0) {
    if (layer == p.config.candidate_source_layer) mode = IndexMode::kCandidateSource;
    if (layer > p.config.candidate_source_layer) mode = IndexMode::kFiltered;
  }
  p.ops().index_select(p.context, p.step,
                       {.heads = p.config.index_n_heads,
                        .key_dim = p.config.index_head_dim,
                        .topk = p.config.index_topk,
                        .candidate_blocks = p.config.candidate_topk_blocks,
                        .candidate_block_size = p.config.candidate_block_size,
                        .mode = mode,
                        .x = p.buffers.x.as<bf16>(),
                        .qr = p.buffers.qr.as<bf16>(),
                        .wq_b = w.indexer_wq_b,
                        .weights_proj = w.indexer_weights_proj,
                        .rope = p.rope(layer),
                        .cache = p.state.source(p.model.source_index(layer)),
                        .candidates = p.buffers.candidates.as<int32_t>(),
                        .selected = p.buffers.selected.as<int32_t>()});
  if (mode == IndexMode::kCandidateSource) {
    p.show("candidates", DType::kI32, p.buffers.candidates.as<int32_t>(),
           {p.step.rows, p.config.candidate_topk_blocks});
  }
}

// window_rows: null where they are there already.
void queries(const Pass& p, int layer, std::byte* window_rows) {
  const AttentionWeights& w = p.model.layer(layer).attn;
  p.ops().attention_input(p.context, p.step,
                          {.heads = p.config.n_heads,
                           .head_dim = p.config.head_dim,
                           .eps = p.config.norm_eps,
                           .x = p.buffers.x.as<bf16>(),
                           .wq_a = w.wq_a,
                           .wq_b = w.wq_b,
                           .wkv = w.wkv,
                           .q_norm = w.q_norm,
                           .kv_norm = w.kv_norm,
                           .rope = p.rope(layer),
                           .qr = p.buffers.qr.as<bf16>(),
                           .q = p.buffers.q.as<bf16>(),
                           .window_rows = window_rows});
}

// From the queries to the sublayer's output. `keys` has the same queries; its sequence arrays name the window rows.
void attend(const Pass& p, int layer, const StepView& keys) {
  const AttentionWeights& w = p.model.layer(layer).attn;
  const bool compressed = p.model.ratio(layer) > 0;
  if (compressed && p.config.is_index_source(layer)) select(p, layer);
  if (compressed) {
    p.show("topk", DType::kI32, p.buffers.selected.as<int32_t>(), {p.step.rows, p.config.index_topk});
  }
  p.ops().sparse_attention(p.context, keys,
                           {.heads = p.config.n_heads,
                            .head_dim = p.config.head_dim,
                            .topk = p.config.index_topk,
                            .whole_block = p.whole_block,
                            .scale = static_cast<float>(std::pow(static_cast<double>(p.config.head_dim), -0.5)),
                            .q = p.buffers.q.as<bf16>(),
                            .sink = w.sink,
                            .window_rows = p.window_rows(layer),
                            .ring = p.state.ring(layer),
                            .selected = compressed ? p.buffers.selected.as<int32_t>() : nullptr,
                            .cache = compressed ? p.state.source(p.model.source_index(layer)) : SourceCache{},
                            .o = p.buffers.o.as<bf16>()});
  p.ops().attention_output(p.context, p.step,
                           {.heads = p.config.n_heads,
                            .head_dim = p.config.head_dim,
                            .groups = p.config.o_groups,
                            .o_rank = p.config.o_lora_rank,
                            .o = p.buffers.o.as<bf16>(),
                            .wo_a = w.wo_a,
                            .wo_b = w.wo_b,
                            .rope = p.rope(layer),
                            .y = p.buffers.y.as<bf16>()});
}

void moe(const Pass& p, int layer) {
  const MoeWeights& w = p.model.layer(layer).ffn;
  const int32_t topk = p.model.activated_experts(layer);
  auto* index = p.buffers.route_index.as<int32_t>();
  auto* weight = p.buffers.route_weight.as<float>();
  const SharedExpertArgs shared = {.swiglu_limit = p.config.swiglu_limit,
                                   .x = p.buffers.x.as<bf16>(),
                                   .weights = w.shared,
                                   .sum = p.buffers.sum.as<float>(),
                                   .y = p.buffers.y.as<bf16>()};
  if (p.ops().begin_shared_expert != nullptr) p.ops().begin_shared_expert(p.context, p.step, shared);
  p.ops().route(p.context, p.step,
                {.experts = static_cast<int32_t>(w.experts.size()),
                 .topk = topk,
                 .route_scale = p.config.route_scale,
                 .gate_temp = p.config.gate_temp,
                 .x = p.buffers.x.as<bf16>(),
                 .gate = w.gate,
                 .bias = w.bias,
                 .bias_vl = w.bias_vl,
                 .index = index,
                 .weight = weight});
  p.show("gate_indices", DType::kI32, index, {p.step.rows, topk});
  p.show("gate_weights", DType::kF32, weight, {p.step.rows, topk});
  p.ops().routed_experts(p.context, p.step,
                         {.topk = topk,
                          .first = 0,
                          .count = static_cast<int32_t>(w.experts.size()),
                          .swiglu_limit = p.config.swiglu_limit,
                          .x = p.buffers.x.as<bf16>(),
                          .index = index,
                          .weight = weight,
                          .experts = w.experts.data(),
                          .sum = p.buffers.sum.as<float>()});
  p.ops().shared_expert(p.context, p.step, shared);
}

// Keeps the mean of the copies at the input of the draft model's target layers (spec dspark.md 1).
void keep_main_hidden(const Pass& p, int layer) {
  const auto& targets = p.config.dspark_target_layer_ids;
  const auto it = std::find(targets.begin(), targets.end(), layer);
  if (it == targets.end()) return;
  const auto count = static_cast<int64_t>(targets.size());
  p.ops().mean_copies(p.context, p.step,
                      {.dim = p.config.dim,
                       .hc = p.config.hc_mult,
                       .h = p.buffers.h.as<bf16>(),
                       .out = p.buffers.main_hidden.as<bf16>() + (it - targets.begin()) * p.config.dim,
                       .out_stride = count * p.config.dim});
}

void begin_attention(const Pass& p, int layer) {
  const LayerWeights& w = p.model.layer(layer);
  const bool backbone = layer < p.config.n_layers;
  if (backbone && p.config.engram_index(layer) >= 0) engram(p, layer);
  if (backbone) keep_main_hidden(p, layer);
  collapse(p, w.hc_attn, w.attn_norm, p.buffers.pre, p.buffers.pre_attn);
  p.show_mixes("hc_attn", p.buffers.pre_attn);
  p.show_rows("attn_in", p.buffers.x);
}

void end_attention(const Pass& p) {
  p.show_rows("attn_out", p.buffers.y);
  expand(p);
}

void expert_half(const Pass& p, int layer) {
  const LayerWeights& w = p.model.layer(layer);
  collapse(p, w.hc_ffn, w.ffn_norm, p.buffers.pre_attn, p.buffers.pre);
  p.show_mixes("hc_ffn", p.buffers.pre);
  p.show_rows("ffn_in", p.buffers.x);
  moe(p, layer);
  p.show_rows("ffn_out", p.buffers.y);
  expand(p);
  p.show_stream("out");
  p.show("pre_mix", DType::kF32, p.buffers.pre.as<float>(), {p.step.rows, p.config.hc_mult});
}

// The stream, and what the layers above take over from `layer` and those below it.
void keep_stream(const Pass& p, int layer) {
  const ModelConfig& c = p.config;
  const auto dim = static_cast<size_t>(c.dim), copies = static_cast<size_t>(c.hc_mult);
  keep(p, p.buffers.h, copies * dim * sizeof(bf16));
  keep(p, p.buffers.selected, static_cast<size_t>(c.index_topk) * sizeof(int32_t));
  if (c.candidate_source_layer >= 0 && c.candidate_source_layer <= layer) {
    keep(p, p.buffers.candidates, static_cast<size_t>(c.candidate_topk_blocks) * sizeof(int32_t));
  }
  const auto& targets = c.dspark_target_layer_ids;
  if (std::any_of(targets.begin(), targets.end(), [layer](int32_t target) { return target <= layer; })) {
    keep(p, p.buffers.main_hidden, targets.size() * dim * sizeof(bf16));
  }
}

}  // namespace

void embed(const Pass& p) {
  p.ops().embed(p.context, p.step,
                {.dim = p.config.dim,
                 .hc = p.config.hc_mult,
                 .table = p.model.weights.embed,
                 .override_rows = p.buffers.image_rows.as<bf16>(),
                 .override_of = p.buffers.image_row,
                 .h = p.buffers.h.as<bf16>(),
                 .pre = p.buffers.pre.as<float>()});
}

void layer_forward(const Pass& p, int layer) {
  begin_attention(p, layer);
  queries(p, layer, p.window_rows(layer));
  if (p.model.ratio(layer) > 0 && p.config.is_kv_source(layer)) compress(p, layer);
  attend(p, layer, p.step);
  end_attention(p);
  expert_half(p, layer);
}

void last_source_forward(const Pass& all, const Pass& kept, int layer, ReplayForm form) {
  const StepBuffers& b = all.buffers;
  const auto copies = static_cast<size_t>(all.config.hc_mult);
  if (form == ReplayForm::kAfterLastSource) {
    layer_forward(all, layer);
    keep_stream(all, layer);
    keep(all, b.pre, copies * sizeof(float));
    return;
  }
  begin_attention(all, layer);
  // Window rows of all rows: a halo of window - 1 would do, but it may lie in an earlier chunk, and this product is a
  // few thousandths of the step.
  const AttentionWeights& w = all.model.layer(layer).attn;
  all.ops().window_rows(all.context, all.step,
                        {.eps = all.config.norm_eps,
                         .x = b.x.as<bf16>(),
                         .wkv = w.wkv,
                         .norm = w.kv_norm,
                         .rope = all.rope(layer),
                         .rows = all.window_rows(layer)});
  compress(all, layer);
  keep_stream(all, layer);
  keep(all, b.x, static_cast<size_t>(all.config.dim) * sizeof(bf16));
  keep(all, b.pre_attn, copies * sizeof(float));
  keep(all, b.post, copies * sizeof(float));
  keep(all, b.comb, copies * copies * sizeof(float));
  queries(kept, layer, nullptr);
  StepView keys = kept.step;
  keys.seq_start = all.step.seq_start;
  keys.seq_row = all.step.seq_row;
  keys.seq_count = all.step.seq_count;
  keys.seq_floor = all.step.seq_floor;
  attend(kept, layer, keys);
  end_attention(kept);
  expert_half(kept, layer);
}

}  // namespace mdi
