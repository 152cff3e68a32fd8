// Weights from the mapped checkpoint into a device's memory.
#pragma once

#include <cstdint>
#include <functional>

#include "model/model.h"
#include "model/state.h"

namespace mdi {

// Bytes that place_weights allocates: every tensor of the text network, the draft layers and the vision tower, padded
// to 256 bytes.
int64_t placed_bytes(const Model& model);

// Copies those tensors into one allocation on the context's device and points model.weights and model.vision at them.
// The experts of a layer lie one behind the other without gaps: the codes of w1 of all experts, then of w3, then of w2,
// then the scales in the same order, so that a base pointer and a stride address any of them. The buffer owns the
// memory; the weights are valid as long as it lives. Throws mdi::Error when the device has no room.
DeviceBuffer place_weights(Context& context, Model& model);

// The same, with what the tensors hold left to `put`: `to` is the place of the tensor that model.weights had at `from`.
using PutTensor = std::function<void(void* to, const void* from, int64_t bytes)>;
DeviceBuffer place_weights(Context& context, Model& model, const PutTensor& put);

}  // namespace mdi
