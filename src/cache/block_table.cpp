#include "cache/block_table.h"

#include <utility>

namespace mdi {

namespace {
int64_t blocks_of(int64_t tokens) { return (tokens + kCacheBlockTokens - 1) / kCacheBlockTokens; }
}  // namespace

int64_t BlockTable::needed(int64_t start, int64_t count) const {
  if (start < 0 || count < 0 || start > size() * kCacheBlockTokens) cache_fault("a sequence's blocks have a gap");
  if (count == 0) return 0;
  const int64_t end = blocks_of(start + count);
  int64_t blocks = 0;
  for (int64_t i = start / kCacheBlockTokens; i < end; ++i) {
    if (i >= size()) return blocks + end - i;
    if (block(i).holders() > 1) ++blocks;
  }
  return blocks;
}

bool BlockTable::reserve(BlockPool& pool, int64_t start, int64_t count, std::vector<CopyBlock>& copies) {
  if (needed(start, count) > pool.free()) return false;
  if (count == 0) return true;
  for (int64_t i = start / kCacheBlockTokens; i < blocks_of(start + count); ++i) {
    if (i >= size()) {
      push_back(pool.take());
      continue;
    }
    const auto at = static_cast<size_t>(i);
    if (refs_[at].holders() == 1) continue;
    BlockRef own = pool.take();
    copies.push_back({.from = refs_[at].id(), .to = own.id()});
    ids_[at] = own.id();
    refs_[at] = std::move(own);
  }
  return true;
}

void BlockTable::truncate(int64_t tokens) {
  const auto blocks = static_cast<size_t>(blocks_of(tokens));
  if (blocks >= refs_.size()) return;
  refs_.resize(blocks);
  ids_.resize(blocks);
}

BlockTable BlockTable::fork() const {
  BlockTable copy;
  copy.refs_.reserve(refs_.size());
  for (const BlockRef& ref : refs_) copy.refs_.push_back(ref.share());
  copy.ids_ = ids_;
  return copy;
}

void BlockTable::push_back(BlockRef block) {
  ids_.push_back(block.id());
  refs_.push_back(std::move(block));
}

}  // namespace mdi
