#include "cache/snapshot_policy.h"

#include <algorithm>

#include "cache/block_table.h"

namespace mdi {

std::vector<int64_t> snapshot_positions(int64_t from, int64_t end, int64_t branch, int64_t every_blocks) {
  std::vector<int64_t> positions;
  const int64_t every = std::max<int64_t>(1, every_blocks) * kCacheBlockTokens;
  for (int64_t at = (from / every + 1) * every; at <= end; at += every) positions.push_back(at);
  for (const int64_t at : {branch, end}) {
    if (at > from && at <= end) positions.push_back(at);
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

}  // namespace mdi
