#include "model/step.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

void check_sequence(const Model& model, const StatePools& state, const StepSequence& s) {
  const std::string where = "step, slot " + std::to_string(s.slot);
  const ModelConfig& c = model.config();
  if (s.slot < 0 || s.slot >= state.slots) throw Error(where, "there are " + std::to_string(state.slots) + " slots");
  const int64_t length = int64_t{s.start} + static_cast<int64_t>(s.tokens.size());
  if (s.start < 0 || length > c.max_position_embeddings) {
    throw Error(where, "a length of " + std::to_string(length) + " tokens is past the model's limit of " +
                           std::to_string(c.max_position_embeddings));
  }
  for (int32_t token : s.tokens) {
    if (token < 0 || token >= c.vocab_size) {
      throw Error(where,
                  "token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(c.vocab_size));
    }
  }
  if (!s.dead.empty() && s.dead.size() != s.tokens.size()) throw Error(where, "one image flag a token is needed");
  const auto flagged = std::count_if(s.dead.begin(), s.dead.end(), [](uint8_t flag) { return flag != 0; });
  if (flagged > 0 && !c.has_vision) throw Error(where, "the model takes text only, found tokens of an image");
  if (static_cast<int64_t>(s.image_rows.size()) != int64_t{flagged} * c.dim) {
    throw Error(where, "expected a row of " + std::to_string(c.dim) + " values for each of " + std::to_string(flagged) +
                           " image tokens, found " + std::to_string(s.image_rows.size()) + " values");
  }
  if (s.replay_from < 0 || s.replay_from > c.max_position_embeddings) {
    throw Error(where, "replay_from: expected a position, found " + std::to_string(s.replay_from));
  }
  if (s.replay_from > 0 && last_source_layer(c) < 0) {
    throw Error(where, "bounded replay needs a model with KV sources");
  }
  const int64_t needed = blocks_for(length);
  if (static_cast<int64_t>(s.blocks.size()) < needed) {
    throw Error(where, std::to_string(length) + " tokens need " + std::to_string(needed) + " blocks, the table has " +
                           std::to_string(s.blocks.size()));
  }
  for (int64_t i = 0; i < needed; ++i) {
    const int32_t block = s.blocks[static_cast<size_t>(i)];
    if (block < 0 || block >= state.blocks_count) {
      throw Error(where,
                  "block " + std::to_string(block) + " is outside the pool of " + std::to_string(state.blocks_count));
    }
  }
}

}  // namespace

Step make_step(const Model& model, const StatePools& state, std::span<const StepSequence> sequences, ReplayForm form) {
  Step step;
  step.form = form;
  std::set<int32_t> slots;
  for (const StepSequence& s : sequences) {
    check_sequence(model, state, s);
    if (!slots.insert(s.slot).second) throw Error("step", "slot " + std::to_string(s.slot) + " occurs twice");
    const auto length = int64_t{s.start} + static_cast<int64_t>(s.tokens.size());
    step.max_blocks = std::max(step.max_blocks, static_cast<int32_t>(blocks_for(length)));
  }
  int32_t images = 0;
  for (const StepSequence& s : sequences) {
    const int32_t first = step.rows();
    const auto count = static_cast<int32_t>(s.tokens.size());
    const int32_t index = step.sequences();
    for (int32_t i = 0; i < count; ++i) {
      step.token.push_back(s.tokens[static_cast<size_t>(i)]);
      step.position.push_back(s.start + i);
      step.seq_of_row.push_back(index);
      const bool image = !s.dead.empty() && s.dead[static_cast<size_t>(i)] != 0;
      step.dead.push_back(image ? 1 : 0);
      step.image_row.push_back(image ? images++ : -1);
    }
    step.image_rows.insert(step.image_rows.end(), s.image_rows.begin(), s.image_rows.end());
    for (int32_t i : s.sample_tokens) {
      if (i < 0 || i >= count) throw Error("step", "sample row " + std::to_string(i) + " is not a new token");
      if (s.start + i < s.replay_from) {
        throw Error("step, slot " + std::to_string(s.slot),
                    "a sample at position " + std::to_string(s.start + i) + " is wanted, but the layers after the " +
                        "last KV source run from position " + std::to_string(s.replay_from) + " on");
      }
      step.sample_rows.push_back(first + i);
    }
    step.seq_slot.push_back(s.slot);
    step.seq_start.push_back(s.start);
    step.seq_row.push_back(first);
    step.seq_count.push_back(count);
    step.seq_kept.push_back(std::clamp(s.start + count - s.replay_from, 0, count));
    step.seq_floor.push_back(s.replay_from);
    const auto used = std::min(s.blocks.size(), static_cast<size_t>(step.max_blocks));
    step.block_table.insert(step.block_table.end(), s.blocks.begin(), s.blocks.begin() + static_cast<ptrdiff_t>(used));
    step.block_table.resize(step.seq_slot.size() * static_cast<size_t>(step.max_blocks), -1);
  }
  if (images == 0) step.image_row.clear();
  return step;
}

StepBuffers::StepBuffers(Context& context, const Model& model, int32_t rows, int32_t samples, int32_t sequences,
                         int32_t blocks)
    : max_rows(rows), max_samples(samples), max_sequences(sequences), max_blocks(blocks) {
  const ModelConfig& c = model.config();
  const int64_t t = rows;
  const int64_t hc = c.hc_mult;
  const auto sources = static_cast<int64_t>(c.kv_source_layers.size());
  const auto make = [&context](int64_t elements, size_t size) {
    return DeviceBuffer(context, elements * static_cast<int64_t>(size));
  };
  // token, position, sequence and image flag of the rows of both views; image rows; the kept rows.
  const int64_t row_arrays = t * (2 * (4 + 4 + 4 + 1) + 4 + 4) + 8;
  step_data = make(row_arrays + int64_t{sequences} * (9 + int64_t{blocks}) * 4 + int64_t{samples} * 4 + 64, 1);
  image_rows = make(c.has_vision ? t * c.dim : 0, sizeof(bf16));
  h = make(t * hc * c.dim, sizeof(bf16));
  pre = make(t * hc, sizeof(float));
  pre_attn = make(t * hc, sizeof(float));
  post = make(t * hc, sizeof(float));
  comb = make(t * hc * hc, sizeof(float));
  x = make(t * c.dim, sizeof(bf16));
  y = make(t * c.dim, sizeof(bf16));
  qr = make(t * c.q_lora_rank, sizeof(bf16));
  q = make(t * c.n_heads * c.head_dim, sizeof(bf16));
  o = make(t * c.n_heads * c.head_dim, sizeof(bf16));
  window_rows = make(t * (c.n_layers + model.draft_stages()) * WindowRow{c.head_dim}.bytes(), 1);
  step_pending = make(sources * t * 2 * c.head_dim, sizeof(float));
  selected = make(t * c.index_topk, sizeof(int32_t));
  candidates = make(t * c.candidate_topk_blocks, sizeof(int32_t));
  compressed = make(t, sizeof(int32_t));
  engram_rows = make(c.engram_layer_ids.empty() ? 0 : t * c.engram_columns(), sizeof(int64_t));
  const int64_t topk = std::max(c.n_activated_experts, c.dspark_n_activated_experts);
  route_index = make(t * topk, sizeof(int32_t));
  route_weight = make(t * topk, sizeof(float));
  sum = make(t * c.dim, sizeof(float));
  main_x = make(model.draft_stages() > 0 ? t * c.dim : 0, sizeof(bf16));
  main_hidden = make(t * static_cast<int64_t>(c.dspark_target_layer_ids.size()) * c.dim, sizeof(bf16));
  logits = make(int64_t{samples} * c.vocab_size, sizeof(float));
  accepted = make(2 * int64_t{sequences}, sizeof(int32_t));

  // 64-bit tables first, so that each array is aligned.
  int64_t bytes = 0;
  for (const EngramHash& hash : model.engram) {
    bytes +=
        static_cast<int64_t>((hash.multipliers.size() + hash.primes.size() + hash.offsets.size()) * sizeof(int64_t));
  }
  bytes += static_cast<int64_t>((model.token_map.size() + 2 * model.plain_frequencies.size()) * 4);
  tables = DeviceBuffer(context, bytes);
  auto* at = tables.as<std::byte>();
  const auto place = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    auto* to = reinterpret_cast<T*>(at);
    const size_t size = values.size() * sizeof(T);
    context.ops->copy_in(context, to, values.data(), static_cast<int64_t>(size));
    at += size;
    return static_cast<const T*>(to);
  };
  for (const EngramHash& hash : model.engram) {
    hashes.push_back({place(hash.multipliers), place(hash.primes), place(hash.offsets)});
  }
  token_map = place(model.token_map);
  plain_frequencies = place(model.plain_frequencies);
  compressed_frequencies = place(model.compressed_frequencies);
}

namespace {

// What the upper layers see of a step that drops rows.
struct KeptRows {
  std::vector<int32_t> row, token, position, seq_of_row, seq_start, seq_row, sample_rows;
  std::vector<uint8_t> dead;
};

KeptRows kept_of(const Step& step) {
  KeptRows k;
  std::vector<int32_t> place(step.token.size(), -1);
  for (size_t s = 0; s < step.seq_slot.size(); ++s) {
    const int32_t dropped = step.seq_count[s] - step.seq_kept[s];
    k.seq_start.push_back(step.seq_start[s] + dropped);
    k.seq_row.push_back(static_cast<int32_t>(k.row.size()));
    for (int32_t i = dropped; i < step.seq_count[s]; ++i) {
      const auto row = static_cast<size_t>(step.seq_row[s] + i);
      place[row] = static_cast<int32_t>(k.row.size());
      k.row.push_back(static_cast<int32_t>(row));
      k.token.push_back(step.token[row]);
      k.position.push_back(step.position[row]);
      k.seq_of_row.push_back(static_cast<int32_t>(s));
      k.dead.push_back(step.dead[row]);
    }
  }
  for (const int32_t row : step.sample_rows) k.sample_rows.push_back(place[static_cast<size_t>(row)]);
  return k;
}

}  // namespace

void upload_step(Context& context, const Step& step, StepBuffers& buffers) {
  if (step.rows() > buffers.max_rows || step.samples() > buffers.max_samples ||
      step.sequences() > buffers.max_sequences || step.max_blocks > buffers.max_blocks) {
    throw Error("step", "it does not fit the buffers: " + std::to_string(step.rows()) + " rows, " +
                            std::to_string(step.samples()) + " samples, " + std::to_string(step.sequences()) +
                            " sequences, " + std::to_string(step.max_blocks) + " blocks a sequence");
  }
  std::vector<std::byte> host;
  const auto put = [&host](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    const size_t offset = host.size();
    host.resize(offset + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(host.data() + offset, values.data(), values.size() * sizeof(T));
    return offset;
  };
  const size_t token = put(step.token);
  const size_t position = put(step.position);
  const size_t seq_of_row = put(step.seq_of_row);
  const size_t seq_slot = put(step.seq_slot);
  const size_t seq_start = put(step.seq_start);
  const size_t seq_row = put(step.seq_row);
  const size_t seq_count = put(step.seq_count);
  const size_t seq_floor = put(step.seq_floor);
  const size_t block_table = put(step.block_table);
  const std::vector<int32_t> no_floor(step.seq_slot.size(), 0);
  const size_t zeros = put(no_floor);
  const bool drops = step.kept_rows() < step.rows();
  const KeptRows kept = drops ? kept_of(step) : KeptRows{};
  const size_t sample_rows = put(drops ? kept.sample_rows : step.sample_rows);
  const size_t kept_row = put(kept.row);
  const size_t kept_token = put(kept.token);
  const size_t kept_position = put(kept.position);
  const size_t kept_seq_of_row = put(kept.seq_of_row);
  const size_t kept_seq_start = put(kept.seq_start);
  const size_t kept_seq_row = put(kept.seq_row);
  const size_t kept_count = put(step.seq_kept);
  const size_t image_row = put(step.image_row);
  const size_t dead = put(step.dead);
  const size_t kept_dead = put(kept.dead);
  auto* base = buffers.step_data.as<std::byte>();
  context.ops->copy_in(context, base, host.data(), static_cast<int64_t>(host.size()));
  const auto ints = [base](size_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
  buffers.view = {.rows = step.rows(),
                  .sequences = step.sequences(),
                  .token = ints(token),
                  .position = ints(position),
                  .seq_of_row = ints(seq_of_row),
                  .dead = reinterpret_cast<const uint8_t*>(base + dead),
                  .seq_slot = ints(seq_slot),
                  .seq_start = ints(seq_start),
                  .seq_row = ints(seq_row),
                  .seq_count = ints(seq_count),
                  .seq_floor = ints(zeros),
                  .block_table = ints(block_table),
                  .max_blocks = step.max_blocks};
  buffers.upper = buffers.view;
  buffers.upper.seq_floor = ints(seq_floor);
  buffers.drops = drops;
  buffers.kept_rows = drops ? ints(kept_row) : nullptr;
  if (drops) {
    buffers.upper.rows = step.kept_rows();
    buffers.upper.token = ints(kept_token);
    buffers.upper.position = ints(kept_position);
    buffers.upper.seq_of_row = ints(kept_seq_of_row);
    buffers.upper.dead = reinterpret_cast<const uint8_t*>(base + kept_dead);
    buffers.upper.seq_start = ints(kept_seq_start);
    buffers.upper.seq_row = ints(kept_seq_row);
    buffers.upper.seq_count = ints(kept_count);
  }
  buffers.sample_rows = ints(sample_rows);
  buffers.image_row = step.image_row.empty() ? nullptr : ints(image_row);
  context.ops->copy_in(context, buffers.image_rows.as<bf16>(), step.image_rows.data(),
                       static_cast<int64_t>(step.image_rows.size() * sizeof(bf16)));
}

}  // namespace mdi
