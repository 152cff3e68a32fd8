// Copies of a sequence's state: from block to block, from slot to slot, and between slots and the host's snapshot
// buffers. Bit by bit, all that a slot has: window rings (the draft stages' too), pending rows, engram history.
//
// Nothing here waits: a copy runs in the order of the context's other work, after the steps and commits that were asked
// for before it and before those that come later. Which ids belong to whom is the caller's bookkeeping (cache/). Throws
// mdi::Error for an id outside its pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/state.h"

namespace mdi {

// Room for slots on the host; `context` outlives it.
class SnapshotBuffers {
 public:
  SnapshotBuffers(Context& context, const StatePools& state, int64_t count);
  ~SnapshotBuffers();
  SnapshotBuffers(const SnapshotBuffers&) = delete;
  SnapshotBuffers& operator=(const SnapshotBuffers&) = delete;

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // of one: that of a slot
  std::byte* at(int64_t snapshot) const;

 private:
  Context& context_;
  int64_t count_, bytes_;
  std::byte* data_;
};

// Bytes of a slot, and of its snapshot: 2.9 MB at the released size.
int64_t slot_bytes(const StatePools& state);

void copy_block(Context& context, StatePools& state, int64_t from, int64_t to);
void copy_slot(Context& context, StatePools& state, int64_t from, int64_t to);
void save_slot(Context& context, const StatePools& state, int64_t slot, SnapshotBuffers& buffers, int64_t snapshot);
void restore_slot(Context& context, StatePools& state, int64_t slot, const SnapshotBuffers& buffers, int64_t snapshot);

}  // namespace mdi
