#include "model/forward.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/draft.h"
#include "model/layer.h"

namespace mdi {

void forward(Context& context, const Model& model, const StatePools& state, const Step& step, StepBuffers& buffers,
             const ForwardHooks& hooks) {
  upload_step(context, step, buffers);
  run_forward(context, model, state, step, buffers, hooks);
}

void run_forward(Context& context, const Model& model, const StatePools& state, const Step& step, StepBuffers& buffers,
                 const ForwardHooks& hooks) {
  const Pass all = start_pass(context, model, state, buffers, buffers.view);
  const Pass p = start_pass(context, model, state, buffers, buffers.upper);
  const int last_source = last_source_layer(p.config);
  context.layer = -1;
  embed(all);
  all.show_stream("embed_out");  // all copies are equal here
  for (int layer = 0; layer < p.config.n_layers; ++layer) {
    context.layer = layer;
    if (hooks.before_layer) hooks.before_layer(layer, buffers);
    if (layer == last_source && buffers.drops) {
      last_source_forward(all, p, layer, step.form);
    } else {
      layer_forward(layer <= last_source ? all : p, layer);
    }
  }
  context.layer = -1;
  draft_seed(p);
  p.show("main_hidden", DType::kBF16, buffers.main_hidden.as<bf16>(),
         {p.step.rows, static_cast<int64_t>(p.config.dspark_target_layer_ids.size()) * p.config.dim});
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
  upload_accepted(context, step, buffers, accepted);
  run_commit(context, model, state, step, buffers);
}

void upload_accepted(Context& context, const Step& step, StepBuffers& buffers, std::span<const int32_t> accepted) {
  if (accepted.size() != static_cast<size_t>(step.sequences())) throw Error("commit", "one count a sequence is needed");
  for (size_t s = 0; s < accepted.size(); ++s) {
    if (accepted[s] < 0 || accepted[s] > step.seq_count[s]) {
      throw Error("commit", "sequence " + std::to_string(s) + " has " + std::to_string(step.seq_count[s]) +
                                " new tokens, " + std::to_string(accepted[s]) + " cannot be accepted");
    }
    // The kept rows are the last ones of the prompt: a part of it would leave windows with a hole.
    if (step.seq_kept[s] < step.seq_count[s] && accepted[s] != 0 && accepted[s] != step.seq_count[s]) {
      throw Error("commit", "sequence " + std::to_string(s) + " is replayed: expected all or none of its " +
                                std::to_string(step.seq_count[s]) + " new tokens, found " +
                                std::to_string(accepted[s]));
    }
  }
  std::vector<int32_t> both(accepted.begin(), accepted.end());
  for (size_t s = 0; s < accepted.size(); ++s) both.push_back(std::min(accepted[s], step.seq_kept[s]));
  context.ops->copy_in(context, buffers.accepted.as<int32_t>(), both.data(),
                       static_cast<int64_t>(both.size() * sizeof(int32_t)));
}

void run_commit(Context& context, const Model& model, StatePools& state, const Step& step, StepBuffers& buffers) {
  const Pass p = start_pass(context, model, state, buffers, buffers.view);
  const auto* counts = buffers.accepted.as<int32_t>();
  const int32_t* upper_counts = counts + step.sequences();
  const int last_source = last_source_layer(p.config);
  for (int layer = 0; layer < state.layers; ++layer) {
    const bool upper = layer > last_source;
    context.ops->commit_ring(
        context, upper ? buffers.upper : buffers.view,
        {.accepted = upper ? upper_counts : counts, .window_rows = p.window_rows(layer), .ring = state.ring(layer)});
    if (layer < p.config.n_layers && p.config.is_kv_source(layer) && model.ratio(layer) > 1) {
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
