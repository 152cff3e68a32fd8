// The cache room: bookkeeping of what lies in the device's pools and in the host's snapshot buffers. It touches no
// memory of them; it says which blocks to copy and which slots to save or restore, and the engine does so
// (model/state_copy.h).
//
// clang-format off
// A sequence's life in these terms
//   admit     hit = prefix.find(key, prompt - 1, accept); slot = slots.take();
//             restore hit.snapshot into the slot, or clear the slot
//   step      prefix.make_room(blocks.needed(start, count)) if need be; blocks.reserve(pool, start, count, copies);
//             do the copies; forward; commit; key.append(committed tokens)
//   snapshot  at a position worth one, if not contains: buffer = prefix.take_snapshot(); save the slot to the buffer;
//             prefix.publish(key, blocks, position, history, buffer)
//   fork      blocks.fork(), a copy of the key, a slot of its own with a copy of the slot
//   end       drop the handles, in any order and at any point
// clang-format on
#pragma once

#include <cstdint>

#include "cache/block_table.h"
#include "cache/pool.h"
#include "cache/prefix_cache.h"
#include "cache/prefix_key.h"
#include "cache/snapshot_policy.h"

namespace mdi {

// From the memory plan; nothing grows later.
struct CacheSizes {
  int32_t blocks = 0, slots = 0, snapshots = 0;
};

struct Cache {
  explicit Cache(const CacheSizes& sizes)
      : blocks(sizes.blocks), slots(sizes.slots), snapshots(sizes.snapshots), prefix(blocks, snapshots) {}

  PrefixHasher hasher;
  BlockPool blocks;
  SlotPool slots;
  SnapshotPool snapshots;
  PrefixCache prefix;  // last: it ends before the pools that it holds parts of
};

}  // namespace mdi
