// The blocks of one sequence, in order, and copy on write.
//
// The one rule: a block with more than one holder is never written. Rows of committed tokens never change, so sharing
// is safe until a sequence appends to a block that it shares; reserve() gives it a copy of its own then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/pool.h"

namespace mdi {

// Tokens of a block: that of kernels/cache_layout.h, which this room may not see.
inline constexpr int32_t kCacheBlockTokens = 128;

// The engine copies block `from` to block `to`, whole. Copies run in the order in which they were asked for, before the
// step for which they were asked; `from` may be another sequence's already by then, but is not yet overwritten.
struct CopyBlock {
  int32_t from = -1, to = -1;
  bool operator==(const CopyBlock&) const = default;
};

class BlockTable {
 public:
  // For StepSequence::blocks; valid until the table changes.
  std::span<const int32_t> ids() const { return ids_; }
  int64_t size() const { return static_cast<int64_t>(refs_.size()); }
  const BlockRef& block(int64_t index) const { return refs_[static_cast<size_t>(index)]; }

  // How many blocks reserve(start, count) would take from the pool.
  int64_t needed(int64_t start, int64_t count) const;
  // Makes room for tokens [start, start + count), in blocks that nobody else holds, and adds the copies that this takes
  // to `copies`. Returns false and changes nothing when fewer than needed() blocks are free (PrefixCache::make_room
  // frees some). `start` is at most what the blocks hold.
  bool reserve(BlockPool& pool, int64_t start, int64_t count, std::vector<CopyBlock>& copies);
  // Gives up the blocks that hold no token below `tokens`.
  void truncate(int64_t tokens);
  void clear() { truncate(0); }

  // A table that shares every block: another sample, or another branch of the conversation.
  BlockTable fork() const;
  void push_back(BlockRef block);

 private:
  std::vector<BlockRef> refs_;
  std::vector<int32_t> ids_;
};

}  // namespace mdi
