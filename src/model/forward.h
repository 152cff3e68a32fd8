// The forward pass, written once for every backend, and the commit that makes its result permanent.
//
// forward() reads the sequences' state and writes only the step's own buffers and cache rows that no query sees yet.
// commit() then keeps the first accepted[s] new tokens of each sequence. Between the two, nothing that a later step can
// read has changed: a step that is never committed never happened.
#pragma once

#include <functional>
#include <span>

#include "model/step.h"

namespace mdi {

// For tests and `mdi check`; empty in service.
struct ForwardHooks {
  // Called before each layer; may overwrite buffers.h and buffers.pre of the step's rows.
  std::function<void(int layer, StepBuffers& buffers)> before_layer;
};

// Leaves logits of the step's sample rows in buffers.logits [samples, vocab], and the means of the copies at the draft
// layers' target layers in buffers.main_hidden. The context's tap sees, by name and layer: embed_out, engram_hash_ids,
// engram_out, attn_in, attn_out, ffn_in, ffn_out, hc_attn_pre/post/comb, hc_ffn_pre/post/comb, gate_indices,
// gate_weights, gate_scores_biased, latent, index_scores (a row a call), topk, candidates (block ids), out, pre_mix,
// main_hidden.
void forward(Context& context, const Model& model, const StatePools& state, const Step& step, StepBuffers& buffers,
             const ForwardHooks& hooks = {});

// accepted [sequences], each 0..new tokens of that sequence. Belongs to the step that forward ran last.
void commit(Context& context, const Model& model, StatePools& state, const Step& step, StepBuffers& buffers,
            std::span<const int32_t> accepted);

// The halves of the two, for whoever records them (kernels/ops.h, record): forward = upload_step + run_forward,
// commit = upload_accepted + run_commit. The run halves only put work on the context. What they put depends on the
// step's shape alone (rows, sequences, samples, max_blocks, whether rows are dropped, whether there are image rows),
// and so does where upload_step and upload_accepted leave the arrays that the work reads.
void run_forward(Context& context, const Model& model, const StatePools& state, const Step& step, StepBuffers& buffers,
                 const ForwardHooks& hooks = {});
// Throws mdi::Error for counts that the step cannot have.
void upload_accepted(Context& context, const Step& step, StepBuffers& buffers, std::span<const int32_t> accepted);
void run_commit(Context& context, const Model& model, StatePools& state, const Step& step, StepBuffers& buffers);

}  // namespace mdi
