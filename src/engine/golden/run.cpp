#include "engine/golden/run.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "kernels/cpu/quant.h"

namespace mdi::golden {

std::string layer_name(int layer, std::string_view name) {
  return "layers." + std::to_string(layer) + "." + std::string(name);
}

TensorView Recording::get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw Error(name, "expected the run to show this value, it did not");
  TensorView view = found->second.view;
  view.data = found->second.bytes.data();
  return view;
}

const std::vector<std::vector<bf16>>& Recording::scores(int layer) const {
  const auto found = scores_.find(layer);
  if (found == scores_.end())
    throw Error(layer_name(layer, "index_scores"), "expected the run to show scores, it did not");
  return found->second;
}

void Recording::add(std::string_view name, int layer, const TensorView& value) {
  if (name == "index_scores") {
    scores_[layer].emplace_back(value.as<bf16>(), value.as<bf16>() + value.elements());
    return;
  }
  Value& v = values_[layer < 0 ? std::string(name) : layer_name(layer, name)];
  const auto* bytes = static_cast<const std::byte*>(value.data);
  v.bytes.insert(v.bytes.end(), bytes, bytes + value.bytes());
  const int64_t rows = v.view.rank == 0 ? 0 : v.view.shape[0];
  v.view = value;
  v.view.shape[0] += rows;
}

namespace {

// A draft's block is a step, too.
int32_t rows_of_steps(const Model& model, int64_t rows) {
  return static_cast<int32_t>(std::max<int64_t>(rows, model.draft_stages() > 0 ? model.config().dspark_block_size : 0));
}

}  // namespace

GoldenSequence::GoldenSequence(Context& context, const Model& model, int64_t tokens, int64_t max_rows)
    : context_(context),
      model_(model),
      state_(make_state(context, model, 1, blocks_for(tokens))),
      buffers_(context, model, rows_of_steps(model, max_rows), rows_of_steps(model, max_rows), 1,
               static_cast<int32_t>(blocks_for(tokens))),
      blocks_(static_cast<size_t>(blocks_for(tokens))) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
  // Not in the order of the sequence: a reader that ignores the table must not get away with it.
  std::reverse(blocks_.begin(), blocks_.end());
}

std::vector<float> GoldenSequence::append(const PromptPart& tokens, bool all_rows, const ForwardHooks& hooks,
                                          Recording* recording) {
  const auto accepted = static_cast<int32_t>(tokens.tokens.size());
  std::vector<int32_t> samples(all_rows ? tokens.tokens.size() : size_t{1});
  std::iota(samples.begin(), samples.end(), all_rows ? 0 : accepted - 1);
  const StepSequence sequence{.slot = 0,
                              .start = static_cast<int32_t>(length_),
                              .tokens = tokens.tokens,
                              .dead = tokens.dead,
                              .image_rows = tokens.image_rows,
                              .blocks = blocks_,
                              .sample_tokens = samples};
  const Step step = make_step(model_, state_, {&sequence, 1});
  if (recording != nullptr) {
    context_.tap = [recording](std::string_view name, int layer, const TensorView& value) {
      recording->add(name, layer, value);
    };
  }
  try {
    forward(context_, model_, state_, step, buffers_, hooks);
  } catch (...) {
    context_.tap = nullptr;
    throw;
  }
  context_.tap = nullptr;
  std::vector<float> logits(samples.size() * static_cast<size_t>(model_.config().vocab_size));
  context_.ops->copy_out(context_, logits.data(), buffers_.logits.as<float>(),
                         static_cast<int64_t>(logits.size() * sizeof(float)));
  commit(context_, model_, state_, step, buffers_, {&accepted, 1});
  length_ += accepted;
  return logits;
}

GoldenSequence::DraftBlock GoldenSequence::draft(int32_t anchor, std::span<const int32_t> tokens) {
  if (draft_buffers_ == nullptr) draft_buffers_ = std::make_unique<DraftBuffers>(context_, model_, 1);
  const DraftSequence sequence{.slot = 0, .length = static_cast<int32_t>(length_), .anchor = anchor};
  DraftBlock block;
  const auto choose = [&](size_t, int i, std::span<const float> logits) {
    block.logits.insert(block.logits.end(), logits.begin(), logits.end());
    const int32_t token = tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= model_.config().vocab_size) {
      throw Error("draft", "expected tokens of the vocabulary, found " + std::to_string(token));
    }
    return token;
  };
  block.confidence =
      mdi::draft(context_, model_, state_, {&sequence, 1}, buffers_, *draft_buffers_, choose).confidence[0];
  return block;
}

std::vector<float> GoldenSequence::window(int layer) const {
  const RingView ring = state_.ring(layer);
  const int64_t row_bytes = ring.row.bytes(), dim = ring.row.head_dim;
  std::vector<std::byte> bytes(static_cast<size_t>(ring.window * row_bytes));
  context_.ops->copy_out(context_, bytes.data(), ring.base, static_cast<int64_t>(bytes.size()));
  std::vector<float> rows(static_cast<size_t>(ring.window * dim));
  for (int64_t i = 0; i < ring.window; ++i) {
    const std::byte* row = &bytes[static_cast<size_t>(i * row_bytes)];
    cpu::act_dequant(WindowRow::codes(row), ring.row.scales(row), dim, &rows[static_cast<size_t>(i * dim)]);
  }
  return rows;
}

std::vector<float> GoldenSequence::cache_rows(int source, bool keys) const {
  const SourceCache cache = state_.source(source);
  const SourceLayout& layout = cache.layout;
  const int64_t dim = keys ? layout.key_dim : layout.head_dim;
  const int64_t count = length_ / layout.ratio;
  std::vector<std::byte> block(static_cast<size_t>(cache.block_bytes));
  std::vector<float> rows(static_cast<size_t>(count * dim));
  for (int64_t j = 0; j < count; ++j) {
    const int64_t row = j % layout.rows;
    if (row == 0) {
      context_.ops->copy_out(context_, block.data(),
                             cache.blocks + blocks_[static_cast<size_t>(j / layout.rows)] * cache.block_bytes,
                             cache.block_bytes);
    }
    float* out = &rows[static_cast<size_t>(j * dim)];
    if (keys) {
      cpu::fp4_dequant_e8m0(layout.key_codes_at(block.data(), row), layout.key_scales_at(block.data(), row), dim, out);
    } else {
      cpu::fp4_dequant_e4m3(layout.kv_codes_at(block.data(), row), layout.kv_scales_at(block.data(), row), dim, out);
    }
  }
  return rows;
}

std::vector<float> GoldenSequence::compressed_rows(int source) const { return cache_rows(source, false); }
std::vector<float> GoldenSequence::index_keys(int source) const { return cache_rows(source, true); }

std::vector<float> GoldenSequence::pending(int source) const {
  std::vector<float> rows(static_cast<size_t>(2 * state_.head_dim));
  context_.ops->copy_out(context_, rows.data(), state_.pending_of(source),
                         static_cast<int64_t>(rows.size() * sizeof(float)));
  return rows;
}

}  // namespace mdi::golden
