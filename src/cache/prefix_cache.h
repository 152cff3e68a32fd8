// Prefixes that sequences have computed, kept for those that begin alike.
//
// A prefix can be continued only from a position at which the whole of the state is known: the compressed rows (blocks)
// and a snapshot of the slot (window rings, pending rows, engram history, draft rings). So what is cached is snapshots;
// each keeps the blocks below it, and blocks are kept for no other reason. A tree of full blocks finds them: every leaf
// has a snapshot. Snapshots lie at any position; where it is not a block's end, the last block is partial, and whoever
// continues from there copies it (block_table.h).
//
// Least recently used snapshots make room. One that is held (being restored) and a block that a sequence holds are
// never taken. Not for several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/block_table.h"
#include "cache/pool.h"
#include "cache/prefix_key.h"

namespace mdi {

// Whether a request may go on from a snapshot. `history` is what publish() was given: how the state came to be (the
// replayed segments), opaque here. Under `--replay exact`: history.empty().
using AcceptSnapshot = std::function<bool(int64_t position, std::string_view history)>;

struct PrefixHit {
  int64_t position = 0;  // tokens whose state is known; 0: none
  BlockTable blocks;     // of tokens [0, position), shared
  SnapshotRef snapshot;  // to restore into the sequence's slot before its first step; hold it until that is asked for
  std::string history;   // the snapshot's
  // A block's end above `position` up to which the blocks are known but no snapshot is: other requests share that much,
  // so a snapshot there is worth taking (a fork point). 0: none.
  int64_t branch = 0;
};

struct PrefixStats {
  int64_t lookups = 0, hits = 0, hit_tokens = 0, looked_up_tokens = 0;
  int64_t published = 0, evicted = 0;  // snapshots
};

class PrefixCache {
 public:
  // The pools outlive the cache.
  PrefixCache(BlockPool& blocks, SnapshotPool& snapshots);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest prefix of `key` that has blocks and an accepted snapshot at a position <= limit. For a prompt the limit
  // is its length less one, so that one token runs and gives logits. Equal positions: the one used last. Marks it as
  // used.
  PrefixHit find(const PrefixKey& key, int64_t limit, const AcceptSnapshot& accept);

  // Whether publish() of the same would add nothing; marks it as used then.
  bool contains(const PrefixKey& key, int64_t position, std::string_view history);

  // A buffer for a snapshot, if need be that of the least recently used one that nobody holds. Empty: all are held.
  SnapshotRef take_snapshot();

  // Makes tokens [0, position) of `key` findable. `blocks`: the table of the sequence that computed them; the cache
  // shares its blocks, so a partial last one is copied when the sequence goes on. `saved`: from take_snapshot(), and
  // the copy of the sequence's slot at that very position was asked for. Dropping `saved` instead is always safe.
  // Returns false, and keeps nothing, where it is known already, or where a hash collides with another prefix.
  bool publish(const PrefixKey& key, const BlockTable& blocks, int64_t position, std::string history,
               SnapshotRef saved);

  // Blocks that are free or that make_room() can free.
  int64_t available() const;
  // Evicts until `blocks` blocks are free. Returns false where that cannot be; it evicts nothing where that can be seen
  // at once.
  bool make_room(int64_t blocks);
  // Evicts everything that nobody holds.
  void clear();

  int64_t snapshots() const { return static_cast<int64_t>(used_.size()); }
  int64_t nodes() const { return static_cast<int64_t>(nodes_.size()); }  // full blocks, and a root a salt
  const PrefixStats& stats() const { return stats_; }

 private:
  struct Node;
  struct Snapshot;
  struct HashOfKey {
    size_t operator()(const BlockHash& h) const { return static_cast<size_t>(h.low); }
  };
  using Used = std::list<std::unique_ptr<Snapshot>>;

  Node* find_root(const PrefixKey& key) const;
  Node* find_child(const Node& parent, const PrefixKey& key, int64_t block) const;
  Snapshot* find_snapshot(const Node& node, const PrefixKey& key, int64_t position, std::string_view history) const;
  Node* grow(const PrefixKey& key, const BlockTable& blocks, int64_t full_blocks);
  static bool frees_its_last_block(const Snapshot& snapshot);
  static bool frees_a_block(const Snapshot& snapshot);
  void touch(const Snapshot& snapshot);
  void evict(Used::iterator at);
  template <class Which>
  bool evict_oldest(int64_t blocks, const Which& which);  // those, until so many blocks are free; whether there was one
  bool evict_one();                                       // the oldest that nobody holds, if there is one
  void prune(Node* node);

  BlockPool& blocks_;
  SnapshotPool& snapshots_;
  std::unordered_map<BlockHash, std::unique_ptr<Node>, HashOfKey> nodes_;
  Used used_;  // most recently used first
  PrefixStats stats_;
};

}  // namespace mdi
