#include "model/draft.h"

#include "core/error.h"
#include "model/layer.h"

namespace mdi {

void draft_seed(const Pass& p) {
  const DraftWeights& draft = p.model.weights.draft;
  if (draft.stages.empty()) return;
  auto* main_x = p.buffers.main_x.as<bf16>();
  p.ops().linear_norm(p.context, p.step,
                      {.eps = p.config.norm_eps,
                       .x = p.buffers.main_hidden.as<bf16>(),
                       .w = draft.main_proj,
                       .norm = draft.main_norm,
                       .y = main_x});
  for (int s = 0; s < p.model.draft_stages(); ++s) {
    const int layer = p.config.n_layers + s;
    const AttentionWeights& w = p.model.layer(layer).attn;
    p.ops().window_rows(p.context, p.step,
                        {.eps = p.config.norm_eps,
                         .x = main_x,
                         .wkv = w.wkv,
                         .norm = w.kv_norm,
                         .rope = p.rope(layer),
                         .rows = p.window_rows(layer)});
  }
}

DraftBuffers::DraftBuffers(Context& context, const Model& model, int32_t sequences) : max_sequences(sequences) {
  const ModelConfig& c = model.config();
  const int64_t rows = int64_t{sequences} * c.dspark_block_size;
  z = DeviceBuffer(context, rows * c.dim * static_cast<int64_t>(sizeof(bf16)));
  base = DeviceBuffer(context, rows * c.vocab_size * static_cast<int64_t>(sizeof(float)));
  token = DeviceBuffer(context, sequences * static_cast<int64_t>(sizeof(int32_t)));
  logits = DeviceBuffer(context, int64_t{sequences} * c.vocab_size * static_cast<int64_t>(sizeof(float)));
  confidence = DeviceBuffer(context, sequences * static_cast<int64_t>(sizeof(float)));
}

namespace {

// [anchor, noise, noise, ...] at positions length, length + 1, ... of each sequence; every row is sampled.
Step block_step(const ModelConfig& c, std::span<const DraftSequence> sequences) {
  Step step;
  for (const DraftSequence& s : sequences) {
    if (s.anchor < 0 || s.anchor >= c.vocab_size) {
      throw Error("draft", "anchor " + std::to_string(s.anchor) + " is outside the vocabulary of " +
                               std::to_string(c.vocab_size));
    }
    step.seq_slot.push_back(s.slot);
    step.seq_start.push_back(s.length);
    step.seq_row.push_back(step.rows());
    step.seq_count.push_back(c.dspark_block_size);
    step.seq_kept.push_back(c.dspark_block_size);
    step.seq_floor.push_back(s.replay_from);
    const auto index = static_cast<int32_t>(step.seq_slot.size()) - 1;
    for (int32_t i = 0; i < c.dspark_block_size; ++i) {
      step.sample_rows.push_back(step.rows());
      step.token.push_back(i == 0 ? s.anchor : c.dspark_noise_token_id);
      step.position.push_back(s.length + i);
      step.seq_of_row.push_back(index);
      step.dead.push_back(0);
    }
  }
  return step;
}

}  // namespace

Drafts draft(Context& context, const Model& model, const StatePools& state, std::span<const DraftSequence> sequences,
             StepBuffers& buffers, DraftBuffers& out, const DraftChoice& choose) {
  const ModelConfig& c = model.config();
  const DraftWeights& w = model.weights.draft;
  if (w.stages.empty()) throw Error("draft", "the model has no draft layers");
  const auto count = static_cast<int32_t>(sequences.size());
  if (count > out.max_sequences) throw Error("draft", "more sequences than the buffers hold");
  const Step step = block_step(c, sequences);
  upload_step(context, step, buffers);
  Pass p = start_pass(context, model, state, buffers, buffers.upper);
  p.whole_block = true;
  embed(p);
  for (int s = 0; s < model.draft_stages(); ++s) {
    context.layer = c.n_layers + s;
    layer_forward(p, context.layer);
  }
  context.layer = -1;
  context.ops->head(context, p.step,
                    {.dim = c.dim,
                     .hc = c.hc_mult,
                     .samples = step.samples(),
                     .eps = c.norm_eps,
                     .sample_rows = buffers.sample_rows,
                     .h = buffers.h.as<bf16>(),
                     .pre = buffers.pre.as<float>(),
                     .norm = w.norm,
                     .head = model.weights.head,
                     .z = out.z.as<bf16>(),
                     .logits = out.base.as<float>()});

  Drafts drafts;
  drafts.tokens.resize(sequences.size());
  drafts.confidence.resize(sequences.size());
  std::vector<int32_t> last;
  for (const DraftSequence& s : sequences) last.push_back(s.anchor);
  std::vector<float> logits(sequences.size() * static_cast<size_t>(c.vocab_size));
  std::vector<float> confidence(sequences.size());
  for (int i = 0; i < c.dspark_block_size; ++i) {
    context.ops->copy_in(context, out.token.as<int32_t>(), last.data(),
                         static_cast<int64_t>(last.size() * sizeof(int32_t)));
    context.ops->markov(context, {.sequences = count,
                                  .dim = c.dim,
                                  .rank = c.dspark_markov_rank,
                                  .token = out.token.as<int32_t>(),
                                  .embed = w.markov_embed,
                                  .head = w.markov_head,
                                  .confidence_proj = w.confidence_proj,
                                  .base = out.base.as<float>() + int64_t{i} * c.vocab_size,
                                  .base_stride = int64_t{c.dspark_block_size} * c.vocab_size,
                                  .z = out.z.as<bf16>() + int64_t{i} * c.dim,
                                  .z_stride = int64_t{c.dspark_block_size} * c.dim,
                                  .logits = out.logits.as<float>(),
                                  .confidence = out.confidence.as<float>()});
    context.ops->copy_out(context, logits.data(), out.logits.as<float>(),
                          static_cast<int64_t>(logits.size() * sizeof(float)));
    context.ops->copy_out(context, confidence.data(), out.confidence.as<float>(),
                          static_cast<int64_t>(confidence.size() * sizeof(float)));
    for (size_t s = 0; s < sequences.size(); ++s) {
      const std::span row(logits.data() + s * static_cast<size_t>(c.vocab_size), static_cast<size_t>(c.vocab_size));
      last[s] = choose(s, i, row);
      drafts.tokens[s].push_back(last[s]);
      drafts.confidence[s].push_back(confidence[s]);
    }
  }
  return drafts;
}

}  // namespace mdi
