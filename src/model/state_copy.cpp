#include "model/state_copy.h"

#include <array>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

void check(const char* what, int64_t id, int64_t count) {
  if (id >= 0 && id < count) return;
  throw Error("state",
              std::string(what) + " " + std::to_string(id) + " is outside the pool of " + std::to_string(count));
}

struct SlotArray {
  std::byte* base;  // slot 0's; slots follow one another
  int64_t bytes;    // of a slot
};

// Everything that belongs to a slot. Who adds to the state adds it here.
std::array<SlotArray, 3> arrays_of(const StatePools& state) {
  return {SlotArray{state.rings.as<std::byte>(), int64_t{state.layers} * state.window * state.window_row.bytes()},
          SlotArray{state.pending.as<std::byte>(), state.pending_stride() * static_cast<int64_t>(sizeof(float))},
          SlotArray{state.history.as<std::byte>(), state.history_depth * static_cast<int64_t>(sizeof(int32_t))}};
}

}  // namespace

int64_t slot_bytes(const StatePools& state) {
  int64_t bytes = 0;
  for (const SlotArray& array : arrays_of(state)) bytes += array.bytes;
  return bytes;
}

SnapshotBuffers::SnapshotBuffers(Context& context, const StatePools& state, int64_t count)
    : context_(context),
      count_(count),
      bytes_(slot_bytes(state)),
      data_(static_cast<std::byte*>(context.ops->allocate_host(context, count * bytes_))) {}

SnapshotBuffers::~SnapshotBuffers() { context_.ops->release_host(context_, data_); }

std::byte* SnapshotBuffers::at(int64_t snapshot) const {
  check("snapshot", snapshot, count_);
  return data_ + snapshot * bytes_;
}

void copy_block(Context& context, StatePools& state, int64_t from, int64_t to) {
  check("block", from, state.blocks_count);
  check("block", to, state.blocks_count);
  auto* blocks = state.blocks.as<std::byte>();
  const int64_t bytes = state.cache.block_bytes;
  context.ops->copy(context, blocks + to * bytes, blocks + from * bytes, bytes);
}

void copy_slot(Context& context, StatePools& state, int64_t from, int64_t to) {
  check("slot", from, state.slots);
  check("slot", to, state.slots);
  for (const SlotArray& array : arrays_of(state)) {
    context.ops->copy(context, array.base + to * array.bytes, array.base + from * array.bytes, array.bytes);
  }
}

void save_slot(Context& context, const StatePools& state, int64_t slot, SnapshotBuffers& buffers, int64_t snapshot) {
  check("slot", slot, state.slots);
  std::byte* at = buffers.at(snapshot);
  for (const SlotArray& array : arrays_of(state)) {
    context.ops->copy(context, at, array.base + slot * array.bytes, array.bytes);
    at += array.bytes;
  }
}

void restore_slot(Context& context, StatePools& state, int64_t slot, const SnapshotBuffers& buffers, int64_t snapshot) {
  check("slot", slot, state.slots);
  const std::byte* at = buffers.at(snapshot);
  for (const SlotArray& array : arrays_of(state)) {
    context.ops->copy(context, array.base + slot * array.bytes, at, array.bytes);
    at += array.bytes;
  }
}

}  // namespace mdi
