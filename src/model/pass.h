// One step on its way through the layers: what the halves of a layer share.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/step.h"

namespace mdi {

// One step on its way through the layers.
struct Pass {
  Context& context;
  const Model& model;
  const ModelConfig& config;
  const StatePools& state;
  StepBuffers& buffers;
  const StepView& step;
  // The block of a draft call: not causal, every query sees the ring and all new rows of its sequence (dspark.md 3).
  bool whole_block = false;

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

// A pass over the step that was uploaded last: over all its rows (buffers.view), or over those that the layers after
// the last KV source and the draft stages compute (buffers.upper).
inline Pass start_pass(Context& context, const Model& model, const StatePools& state, StepBuffers& buffers,
                       const StepView& rows) {
  return {
      .context = context, .model = model, .config = model.config(), .state = state, .buffers = buffers, .step = rows};
}

}  // namespace mdi
