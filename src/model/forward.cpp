#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

// One step on its way through the layers.
struct Pass {
  Context& context;
  const Model& model;
  const ModelConfig& config;
  const StatePools& state;
  StepBuffers& buffers;
  const StepView& step;

  const Ops& ops() const { return *context.ops; }

  // Shows a device array to the tap.
  void show(std::string_view name, DType dtype, const void* data, std::initializer_list<int64_t> shape) const {
    if (!context.tap) return;
    TensorView view{.data = nullptr, .dtype = dtype, .rank = static_cast<int>(shape.size()), .shape = {}};
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    std::vector<std::byte> host(view.bytes());
    context.ops->copy_out(context, host.data(), data, static_cast<int64_t>(host.size()));
    view.data = host.data();
    context.tap(name, context.layer, view);
  }
  void show_rows(std::string_view name, const DeviceBuffer& rows) const {
    show(name, DType::kBF16, rows.as<bf16>(), {step.rows, config.dim});
  }
  void show_stream(std::string_view name) const {
    show(name, DType::kBF16, buffers.h.as<bf16>(), {step.rows, config.hc_mult, config.dim});
  }
  void show_mixes(const std::string& name, const DeviceBuffer& pre) const {
    const int64_t hc = config.hc_mult;
    show(name + "_pre", DType::kF32, pre.as<float>(), {step.rows, hc});
    show(name + "_post", DType::kF32, buffers.post.as<float>(), {step.rows, hc});
    show(name + "_comb", DType::kF32, buffers.comb.as<float>(), {step.rows, hc, hc});
  }

  std::byte* window_rows(int layer) const {
    return buffers.window_rows.as<std::byte>() + int64_t{layer} * buffers.max_rows * state.window_row.bytes();
  }
  float* step_pending(int source) const {
    return buffers.step_pending.as<float>() + int64_t{source} * buffers.max_rows * 2 * config.head_dim;
  }
  RopeTable rope(int layer) const {
    return {.inv_freq = model.ratio(layer) == 0 ? buffers.plain_frequencies : buffers.compressed_frequencies,
            .rope_dim = config.rope_head_dim};
  }
};

void embed(const Pass& p, const ForwardHooks& hooks) {
  p.ops().embed(p.context, p.step,
                {.dim = p.config.dim,
                 .hc = p.config.hc_mult,
                 .table = p.model.weights.embed,
                 .override_rows = hooks.override_rows,
                 .override_of = hooks.override_of,
                 .h = p.buffers.h.as<bf16>(),
                 .pre = p.buffers.pre.as<float>()});
  // All copies are equal here; copy 0 of each row is the embedding.
  p.show_stream("embed_out");
}

void engram(const Pass& p, int layer) {
  const auto index = static_cast<size_t>(p.config.engram_index(layer));
  const StepBuffers::Hash& hash = p.buffers.hashes[index];
  const EngramWeights& w = p.model.weights.layers[static_cast<size_t>(layer)].engram;
  auto* rows = p.buffers.engram_rows.as<int64_t>();
  p.ops().engram_hash(p.context, p.step,
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
  const AttentionWeights& w = p.model.weights.layers[static_cast<size_t>(layer)].attn;
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
  const AttentionWeights& w = p.model.weights.layers[static_cast<size_t>(layer)].attn;
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

void attention(const Pass& p, int layer) {
  const AttentionWeights& w = p.model.weights.layers[static_cast<size_t>(layer)].attn;
  const bool compressed = p.model.ratio(layer) > 0;
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
                           .window_rows = p.window_rows(layer)});
  if (p.config.is_kv_source(layer)) compress(p, layer);
  if (p.config.is_index_source(layer)) select(p, layer);
  if (compressed) {
    p.show("topk", DType::kI32, p.buffers.selected.as<int32_t>(), {p.step.rows, p.config.index_topk});
  }
  p.ops().sparse_attention(p.context, p.step,
                           {.heads = p.config.n_heads,
                            .head_dim = p.config.head_dim,
                            .topk = p.config.index_topk,
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
  const MoeWeights& w = p.model.weights.layers[static_cast<size_t>(layer)].ffn;
  auto* index = p.buffers.route_index.as<int32_t>();
  auto* weight = p.buffers.route_weight.as<float>();
  p.ops().route(p.context, p.step,
                {.experts = p.config.n_routed_experts,
                 .topk = p.config.n_activated_experts,
                 .route_scale = p.config.route_scale,
                 .gate_temp = p.config.gate_temp,
                 .x = p.buffers.x.as<bf16>(),
                 .gate = w.gate,
                 .bias = w.bias,
                 .bias_vl = w.bias_vl,
                 .index = index,
                 .weight = weight});
  p.show("gate_indices", DType::kI32, index, {p.step.rows, p.config.n_activated_experts});
  p.show("gate_weights", DType::kF32, weight, {p.step.rows, p.config.n_activated_experts});
  p.ops().routed_experts(p.context, p.step,
                         {.topk = p.config.n_activated_experts,
                          .first = 0,
                          .count = p.config.n_routed_experts,
                          .swiglu_limit = p.config.swiglu_limit,
                          .x = p.buffers.x.as<bf16>(),
                          .index = index,
                          .weight = weight,
                          .experts = w.experts.data(),
                          .sum = p.buffers.sum.as<float>()});
  p.ops().shared_expert(p.context, p.step,
                        {.swiglu_limit = p.config.swiglu_limit,
                         .x = p.buffers.x.as<bf16>(),
                         .weights = w.shared,
                         .sum = p.buffers.sum.as<float>(),
                         .y = p.buffers.y.as<bf16>()});
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

void layer_forward(const Pass& p, int layer) {
  const LayerWeights& w = p.model.weights.layers[static_cast<size_t>(layer)];
  if (p.config.engram_index(layer) >= 0) engram(p, layer);
  keep_main_hidden(p, layer);

  collapse(p, w.hc_attn, w.attn_norm, p.buffers.pre, p.buffers.pre_attn);
  p.show_mixes("hc_attn", p.buffers.pre_attn);
  p.show_rows("attn_in", p.buffers.x);
  attention(p, layer);
  p.show_rows("attn_out", p.buffers.y);
  expand(p);

  collapse(p, w.hc_ffn, w.ffn_norm, p.buffers.pre_attn, p.buffers.pre);
  p.show_mixes("hc_ffn", p.buffers.pre);
  p.show_rows("ffn_in", p.buffers.x);
  moe(p, layer);
  p.show_rows("ffn_out", p.buffers.y);
  expand(p);
  p.show_stream("out");
  p.show("pre_mix", DType::kF32, p.buffers.pre.as<float>(), {p.step.rows, p.config.hc_mult});
}

Pass start_pass(Context& context, const Model& model, const StatePools& state, StepBuffers& buffers) {
  return {.context = context,
          .model = model,
          .config = model.config(),
          .state = state,
          .buffers = buffers,
          .step = buffers.view};
}

}  // namespace

void forward(Context& context, const Model& model, const StatePools& state, const Step& step, StepBuffers& buffers,
             const ForwardHooks& hooks) {
  upload_step(context, step, buffers);
  const Pass p = start_pass(context, model, state, buffers);
  context.layer = -1;
  embed(p, hooks);
  for (int layer = 0; layer < p.config.n_layers; ++layer) {
    context.layer = layer;
    if (hooks.before_layer) hooks.before_layer(layer, buffers);
    layer_forward(p, layer);
  }
  context.layer = -1;
  p.show("main_hidden", DType::kBF16, buffers.main_hidden.as<bf16>(),
         {step.rows(), static_cast<int64_t>(p.config.dspark_target_layer_ids.size()) * p.config.dim});
  p.ops().head(context, p.step,
               {.dim = p.config.dim,
                .hc = p.config.hc_mult,
                .samples = step.samples(),
                .eps = p.config.norm_eps,
                .sample_rows = buffers.sample_rows,
                .h = buffers.h.as<bf16>(),
                .pre = buffers.pre.as<float>(),
                .norm = model.weights.norm,
                .head = model.weights.head,
                .logits = buffers.logits.as<float>()});
}

void commit(Context& context, const Model& model, StatePools& state, const Step& step, StepBuffers& buffers,
            std::span<const int32_t> accepted) {
  if (accepted.size() != static_cast<size_t>(step.sequences())) throw Error("commit", "one count a sequence is needed");
  for (size_t s = 0; s < accepted.size(); ++s) {
    if (accepted[s] < 0 || accepted[s] > step.seq_count[s]) {
      throw Error("commit", "sequence " + std::to_string(s) + " has " + std::to_string(step.seq_count[s]) +
                                " new tokens, " + std::to_string(accepted[s]) + " cannot be accepted");
    }
  }
  const Pass p = start_pass(context, model, state, buffers);
  auto* counts = buffers.accepted.as<int32_t>();
  context.ops->copy_in(context, counts, accepted.data(), static_cast<int64_t>(accepted.size_bytes()));
  for (int layer = 0; layer < p.config.n_layers; ++layer) {
    context.ops->commit_ring(context, p.step,
                             {.accepted = counts, .window_rows = p.window_rows(layer), .ring = state.ring(layer)});
    if (p.config.is_kv_source(layer) && model.ratio(layer) > 1) {
      const int source = model.source_index(layer);
      context.ops->commit_pending(context, p.step,
                                  {.accepted = counts,
                                   .head_dim = p.config.head_dim,
                                   .step_pending = p.step_pending(source),
                                   .pending = state.pending_of(source),
                                   .pending_stride = state.pending_stride()});
    }
  }
  if (!p.config.engram_layer_ids.empty()) {
    context.ops->commit_history(context, p.step,
                                {.accepted = counts,
                                 .depth = state.history_depth,
                                 .compressed = buffers.compressed.as<int32_t>(),
                                 .history = state.history.as<int32_t>()});
  }
}

}  // namespace mdi
