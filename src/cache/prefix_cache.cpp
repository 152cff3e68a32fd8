#include "cache/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mdi {

// A full block below its parent; the root of a salt has no block. Lives while a child or a snapshot does.
struct PrefixCache::Node {
  BlockHash hash;
  Node* parent = nullptr;
  int64_t depth = 0;  // blocks up to this one's end
  BlockRef block;
  std::vector<int32_t> tokens;    // what the hash stands for, compared at every match
  std::vector<ImagePart> images;  // starts relative to the block's first token
  std::string salt;               // a root's
  int64_t children = 0;
  std::vector<Snapshot*> snapshots;
};

struct PrefixCache::Snapshot {
  Node* node = nullptr;  // the last full block
  int64_t position = 0;
  std::vector<int32_t> tokens;  // behind the last full block
  std::vector<ImagePart> images;
  BlockRef tail;  // their rows, and perhaps others behind them that are nobody's business; none: at a block's end
  std::string history;
  SnapshotRef buffer;
  Used::iterator self;
  int64_t stamp = 0;  // grows with every use

  bool held() const { return buffer.holders() > 1; }
};

namespace {

std::span<const int32_t> tokens_in(const PrefixKey& key, int64_t begin, int64_t end) {
  return key.tokens().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

bool equal(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// A block that only the cache holds, and only once: dropping that handle frees it.
bool last_holder(const BlockRef& block) { return block.holders() == 1; }

}  // namespace

PrefixCache::PrefixCache(BlockPool& blocks, SnapshotPool& snapshots) : blocks_(blocks), snapshots_(snapshots) {}

PrefixCache::~PrefixCache() = default;

PrefixCache::Node* PrefixCache::find_root(const PrefixKey& key) const {
  const auto it = nodes_.find(key.root());
  if (it == nodes_.end() || it->second->parent != nullptr || it->second->salt != key.salt()) return nullptr;
  return it->second.get();
}

PrefixCache::Node* PrefixCache::find_child(const Node& parent, const PrefixKey& key, int64_t block) const {
  const auto it = nodes_.find(key.chain()[static_cast<size_t>(block)]);
  if (it == nodes_.end() || it->second->parent != &parent) return nullptr;
  const int64_t begin = block * kCacheBlockTokens;
  const Node& node = *it->second;
  if (!equal(node.tokens, tokens_in(key, begin, begin + kCacheBlockTokens))) return nullptr;
  if (node.images != key.images_in(begin, begin + kCacheBlockTokens)) return nullptr;
  return it->second.get();
}

PrefixCache::Snapshot* PrefixCache::find_snapshot(const Node& node, const PrefixKey& key, int64_t position,
                                                  std::string_view history) const {
  const int64_t begin = node.depth * kCacheBlockTokens;
  for (Snapshot* snapshot : node.snapshots) {
    if (snapshot->position == position && snapshot->history == history &&
        equal(snapshot->tokens, tokens_in(key, begin, position)) &&
        snapshot->images == key.images_in(begin, position)) {
      return snapshot;
    }
  }
  return nullptr;
}

PrefixHit PrefixCache::find(const PrefixKey& key, int64_t limit, const AcceptSnapshot& accept) {
  limit = std::min(limit, key.length());
  ++stats_.lookups;
  stats_.looked_up_tokens += key.length();
  std::vector<Node*> path;
  for (Node* node = find_root(key); node != nullptr;) {
    path.push_back(node);
    const auto next = static_cast<int64_t>(path.size());  // blocks, should this one match too
    node = next * kCacheBlockTokens > limit ? nullptr : find_child(*node, key, next - 1);
  }

  PrefixHit hit;
  const Snapshot* best = nullptr;
  for (auto node = path.rbegin(); node != path.rend() && best == nullptr; ++node) {
    const int64_t begin = (*node)->depth * kCacheBlockTokens;
    for (const Snapshot* s : (*node)->snapshots) {
      if (s->position > limit) continue;
      if (best != nullptr && std::pair(s->position, s->stamp) < std::pair(best->position, best->stamp)) continue;
      if (!equal(s->tokens, tokens_in(key, begin, s->position))) continue;
      if (s->images != key.images_in(begin, s->position)) continue;
      if (accept(s->position, s->history)) best = s;
    }
  }
  const int64_t known = path.empty() ? 0 : path.back()->depth * kCacheBlockTokens;
  if (best != nullptr) {
    hit.position = best->position;
    for (int64_t i = 1; i <= best->node->depth; ++i) hit.blocks.push_back(path[static_cast<size_t>(i)]->block.share());
    if (best->tail) hit.blocks.push_back(best->tail.share());
    hit.snapshot = best->buffer.share();
    hit.history = best->history;
    touch(*best);
    ++stats_.hits;
    stats_.hit_tokens += hit.position;
  }
  if (known > hit.position) hit.branch = known;
  return hit;
}

bool PrefixCache::contains(const PrefixKey& key, int64_t position, std::string_view history) {
  if (position > key.length()) return false;
  Node* node = find_root(key);
  for (int64_t i = 0; node != nullptr && i < position / kCacheBlockTokens; ++i) node = find_child(*node, key, i);
  const Snapshot* snapshot = node == nullptr ? nullptr : find_snapshot(*node, key, position, history);
  if (snapshot == nullptr) return false;
  touch(*snapshot);
  return true;
}

SnapshotRef PrefixCache::take_snapshot() {
  if (snapshots_.free() == 0) evict_one();
  return snapshots_.take();
}

// The node of the first `full_blocks` blocks, made where it is missing; null where a hash is that of another prefix.
PrefixCache::Node* PrefixCache::grow(const PrefixKey& key, const BlockTable& blocks, int64_t full_blocks) {
  const auto add = [this](const BlockHash& hash, Node* parent) -> Node* {
    const auto [it, added] = nodes_.try_emplace(hash);
    if (!added) return nullptr;
    it->second = std::make_unique<Node>();
    it->second->hash = hash;
    it->second->parent = parent;
    if (parent != nullptr) {
      it->second->depth = parent->depth + 1;
      ++parent->children;
    }
    return it->second.get();
  };
  Node* node = find_root(key);
  if (node == nullptr) {
    node = add(key.root(), nullptr);
    if (node == nullptr) return nullptr;
    node->salt = key.salt();
  }
  for (int64_t i = 0; i < full_blocks; ++i) {
    Node* child = find_child(*node, key, i);
    if (child == nullptr) {
      child = add(key.chain()[static_cast<size_t>(i)], node);
      if (child == nullptr) {
        prune(node);
        return nullptr;
      }
      const int64_t begin = i * kCacheBlockTokens;
      const auto tokens = tokens_in(key, begin, begin + kCacheBlockTokens);
      child->tokens.assign(tokens.begin(), tokens.end());
      child->images = key.images_in(begin, begin + kCacheBlockTokens);
      child->block = blocks.block(i).keep();
    }
    node = child;
  }
  return node;
}

bool PrefixCache::publish(const PrefixKey& key, const BlockTable& blocks, int64_t position, std::string history,
                          SnapshotRef saved) {
  if (position < 1 || position > key.length()) cache_fault("a snapshot outside its sequence is published");
  if (position > blocks.size() * kCacheBlockTokens) cache_fault("a snapshot without its blocks is published");
  if (!saved) cache_fault("a snapshot without a buffer is published");
  const int64_t full = position / kCacheBlockTokens;
  Node* node = grow(key, blocks, full);
  if (node == nullptr || find_snapshot(*node, key, position, history) != nullptr) return false;

  auto snapshot = std::make_unique<Snapshot>();
  const int64_t begin = full * kCacheBlockTokens;
  const auto tokens = tokens_in(key, begin, position);
  snapshot->node = node;
  snapshot->position = position;
  snapshot->tokens.assign(tokens.begin(), tokens.end());
  snapshot->images = key.images_in(begin, position);
  if (position > begin) snapshot->tail = blocks.block(full).keep();
  snapshot->history = std::move(history);
  snapshot->buffer = std::move(saved);
  node->snapshots.push_back(snapshot.get());
  used_.push_front(std::move(snapshot));
  used_.front()->self = used_.begin();
  touch(*used_.front());
  ++stats_.published;
  return true;
}

int64_t PrefixCache::available() const { return int64_t{blocks_.free()} + blocks_.idle(); }

bool PrefixCache::make_room(int64_t blocks) {
  if (available() < blocks) return blocks_.free() >= blocks;
  while (blocks_.free() < blocks) {
    // A held block's parents are held too, but where two sequences computed one prefix at the same time; and two
    // snapshots may keep one partial block, so that neither alone frees it. What is looked for grows with its cost.
    const bool evicted = evict_oldest(blocks, [](const Snapshot& s) { return frees_its_last_block(s); }) ||
                         evict_oldest(blocks, [](const Snapshot& s) { return frees_a_block(s); }) || evict_one();
    if (!evicted) return false;
  }
  return true;
}

template <class Which>
bool PrefixCache::evict_oldest(int64_t blocks, const Which& which) {
  bool any = false;
  for (auto newer = used_.end(); newer != used_.begin() && blocks_.free() < blocks;) {
    const auto at = std::prev(newer);
    if ((*at)->held() || !which(**at)) {
      newer = at;
      continue;
    }
    evict(at);
    any = true;
  }
  return any;
}

bool PrefixCache::evict_one() {
  const auto oldest = std::find_if(used_.rbegin(), used_.rend(), [](const auto& s) { return !s->held(); });
  if (oldest == used_.rend()) return false;
  evict((*oldest)->self);
  return true;
}

void PrefixCache::clear() {
  for (auto it = used_.begin(); it != used_.end();) {
    const auto at = it++;
    if (!(*at)->held()) evict(at);
  }
}

// Whether the snapshot's last block, partial or full, comes free with it.
bool PrefixCache::frees_its_last_block(const Snapshot& snapshot) {
  if (snapshot.tail) return last_holder(snapshot.tail);
  const Node& node = *snapshot.node;
  return node.children == 0 && node.snapshots.size() == 1 && last_holder(node.block);
}

// Whether any block comes free with it.
bool PrefixCache::frees_a_block(const Snapshot& snapshot) {
  if (snapshot.tail && last_holder(snapshot.tail)) return true;
  // The nodes that would go with it.
  const Node* node = snapshot.node;
  size_t own = 1;
  int64_t children = 0;
  while (node->parent != nullptr && node->children == children && node->snapshots.size() == own) {
    if (last_holder(node->block)) return true;
    node = node->parent;
    own = 0;
    children = 1;
  }
  return false;
}

void PrefixCache::touch(const Snapshot& snapshot) {
  used_.splice(used_.begin(), used_, snapshot.self);
  const int64_t newest = used_.size() > 1 ? (*std::next(used_.begin()))->stamp : 0;
  used_.front()->stamp = std::max(newest, used_.front()->stamp) + 1;
}

void PrefixCache::evict(Used::iterator at) {
  Node* node = (*at)->node;
  std::erase(node->snapshots, at->get());
  used_.erase(at);
  prune(node);
  ++stats_.evicted;
}

void PrefixCache::prune(Node* node) {
  while (node != nullptr && node->children == 0 && node->snapshots.empty()) {
    Node* parent = node->parent;
    if (parent != nullptr) --parent->children;
    nodes_.erase(node->hash);
    node = parent;
  }
}

}  // namespace mdi
