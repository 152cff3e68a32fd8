// The unit of work: a list of (sequence, new tokens), and the buffers that one step owns.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "model/replay.h"
#include "model/state.h"

namespace mdi {

// One sequence's part of a step. Its committed length is `start`; the new tokens take positions start, start + 1, ...
struct StepSequence {
  int32_t slot = 0;
  int32_t start = 0;
  std::span<const int32_t> tokens;
  std::span<const uint8_t> dead;  // empty: none; else one flag a token, 1 inside an image span
  // What the flagged tokens are embedded as, in their order: [flagged, dim] (features and delimiters, vision.md 4).
  std::span<const bf16> image_rows = {};
  std::span<const int32_t> blocks;         // block table, at least blocks_for(start + tokens)
  std::span<const int32_t> sample_tokens;  // indices into `tokens` whose logits are wanted, ascending
  // Bounded replay (model/replay.h): the layers after the last KV source compute the tokens from this position on, and
  // their windows see nothing older. It stays with the sequence while it decodes. 0: exact.
  int32_t replay_from = 0;
};

struct Step {
  std::vector<int32_t> token, position, seq_of_row;
  std::vector<uint8_t> dead;
  std::vector<int32_t> image_row;  // [T] the row of image_rows that a token is embedded as, or -1; empty without images
  std::vector<bf16> image_rows;    // [images' tokens, dim]
  std::vector<int32_t> seq_slot, seq_start, seq_row, seq_count, block_table;
  std::vector<int32_t> seq_kept, seq_floor;  // of the upper layers: how many of the last new tokens; window floor
  std::vector<int32_t> sample_rows;
  int32_t max_blocks = 0;
  ReplayForm form = ReplayForm::kAfterLastSource;

  int32_t rows() const { return static_cast<int32_t>(token.size()); }
  int32_t sequences() const { return static_cast<int32_t>(seq_slot.size()); }
  int32_t samples() const { return static_cast<int32_t>(sample_rows.size()); }
  int32_t kept_rows() const { return std::accumulate(seq_kept.begin(), seq_kept.end(), 0); }
};

// Throws mdi::Error for a token outside the vocabulary, image rows that are not as many as the flagged tokens, a length
// past max_position_embeddings, a slot or block outside the pools, a block table that is too short, a slot that occurs
// twice, a sample of a token that the upper layers do not compute, and replay of a model without KV sources.
Step make_step(const Model& model, const StatePools& state, std::span<const StepSequence> sequences,
               ReplayForm form = ReplayForm::kAfterLastSource);

// Everything that forward writes besides cache rows that nobody sees yet. Sized once for max_rows and max_samples.
struct StepBuffers {
  StepBuffers(Context& context, const Model& model, int32_t max_rows, int32_t max_samples, int32_t max_sequences,
              int32_t max_blocks);

  int32_t max_rows, max_samples, max_sequences, max_blocks;
  DeviceBuffer step_data;                       // the arrays of StepView
  DeviceBuffer image_rows;                      // [T, dim], of models that take images
  DeviceBuffer h, pre, pre_attn, post, comb;    // stream [T, hc, dim] and mixes
  DeviceBuffer x, y;                            // sublayer input and output [T, dim]
  DeviceBuffer qr, q, o;                        // attention
  DeviceBuffer window_rows;                     // [layers + draft stages, T] rows
  DeviceBuffer step_pending;                    // [KV sources, T, 2, head_dim]
  DeviceBuffer selected, candidates;            // [T, index_topk], [T, candidate_topk_blocks]
  DeviceBuffer compressed, engram_rows;         // [T], [T, columns]
  DeviceBuffer route_index, route_weight, sum;  // experts
  DeviceBuffer main_hidden, main_x;             // draft input: [T, targets, dim], [T, dim] bf16
  DeviceBuffer logits;                          // [samples, vocab] fp32
  DeviceBuffer accepted;                        // [2, S]: of all rows, of the upper layers' rows
  DeviceBuffer tables;                          // what the hash and the rope read: copied once

  // Device copies of the model's small tables.
  const int32_t* token_map = nullptr;
  struct Hash {
    const int64_t *multipliers = nullptr, *primes = nullptr, *offsets = nullptr;
  };
  std::vector<Hash> hashes;
  const float* plain_frequencies = nullptr;
  const float* compressed_frequencies = nullptr;

  // Of the step that was uploaded last: all rows, and those that the upper layers and the draft stages compute.
  StepView view, upper;
  bool drops = false;                    // upper has fewer rows than view
  const int32_t* kept_rows = nullptr;    // [upper.rows] rows of view, where it drops some
  const int32_t* sample_rows = nullptr;  // [samples] rows of upper
  const int32_t* image_row = nullptr;    // [T], null: the step has no images
};

// Copies the step's arrays to the device and points buffers.view and buffers.upper at them.
void upload_step(Context& context, const Step& step, StepBuffers& buffers);

}  // namespace mdi
