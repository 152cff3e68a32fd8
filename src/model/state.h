// What the model keeps of its sequences between steps, on the context's device: paged blocks of compressed rows, and a
// slot per sequence with the window rings, the pending rows of odd tails and the engram history (spec kv-cache.md).
//
// Which block and which slot belongs to whom is bookkeeping of the caller; nothing here counts references.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"

namespace mdi {

// Device memory of a context, released with it. `context` outlives it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Context& context, int64_t bytes)  // zeroed
      : context_(&context), data_(context.ops->allocate(context, bytes)) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : context_(other.context_), data_(other.data_) { other.data_ = nullptr; }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      context_ = other.context_;
      data_ = other.data_;
      other.data_ = nullptr;
    }
    return *this;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  bool empty() const { return data_ == nullptr; }

 private:
  void reset() {
    if (data_ != nullptr) context_->ops->release(*context_, data_);
    data_ = nullptr;
  }
  Context* context_ = nullptr;
  void* data_ = nullptr;
};

struct StatePools {
  CacheLayout cache;
  WindowRow window_row;
  int32_t window = 0, layers = 0, head_dim = 0, history_depth = 0;
  int64_t blocks_count = 0, slots = 0;
  DeviceBuffer blocks;   // [blocks_count] of cache.block_bytes
  DeviceBuffer rings;    // [slots, layers, window] rows; the draft stages' behind the backbone's
  DeviceBuffer pending;  // [slots, KV sources, 2, head_dim] fp32; used by ratio-2 sources
  DeviceBuffer history;  // [slots, history_depth] int32, newest first, -1: before the start or dead

  SourceCache source(int index) const;
  RingView ring(int layer) const;
  float* pending_of(int source) const;  // of slot 0; slots are pending_stride() floats apart
  int64_t pending_stride() const;
};

StatePools make_state(Context& context, const Model& model, int64_t slots, int64_t blocks);

// Makes a slot that of an empty sequence. Rings and pending rows need no clearing: nothing reads rows of positions that
// the sequence does not have.
void clear_slot(Context& context, StatePools& state, int64_t slot);

// Blocks that hold `tokens` tokens.
inline int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace mdi
