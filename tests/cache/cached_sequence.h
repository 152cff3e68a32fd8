// A request with its blocks, as an engine has it, but for the computing. Snapshots are numbers here; what they hold is
// tests/engine's business.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"

namespace mdi::testing {

inline std::vector<int32_t> counting(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline bool accept_exact(int64_t, std::string_view history) { return history.empty(); }
inline bool accept_any(int64_t, std::string_view) { return true; }

// A request with its table, as an engine has it, but for the computing.
struct Sequence {
  Cache& cache;
  PrefixKey key;
  BlockTable blocks;

  explicit Sequence(Cache& c, std::string salt = {}) : cache(c), key(c.hasher, std::move(salt)) {}
  Sequence(Cache& c, const std::vector<int32_t>& tokens, std::string salt = {}) : Sequence(c, std::move(salt)) {
    grow(tokens);
  }

  std::vector<CopyBlock> grow(const std::vector<int32_t>& tokens) {
    std::vector<CopyBlock> copies;
    const auto count = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(cache.prefix.make_room(blocks.needed(key.length(), count)));
    EXPECT_TRUE(blocks.reserve(cache.blocks, key.length(), count, copies));
    key.append(tokens);
    return copies;
  }
  // The buffer's id, or -1 where publish() kept nothing.
  int32_t publish(int64_t position, std::string history = {}) {
    SnapshotRef buffer = cache.prefix.take_snapshot();
    if (!buffer) return -1;
    const int32_t id = buffer.id();
    return cache.prefix.publish(key, blocks, position, std::move(history), std::move(buffer)) ? id : -1;
  }
  int32_t publish() { return publish(key.length()); }
};

inline PrefixHit find(Cache& cache, const std::vector<int32_t>& tokens, const AcceptSnapshot& accept = accept_exact,
                      std::string salt = {}) {
  PrefixKey key(cache.hasher, std::move(salt));
  key.append(tokens);
  return cache.prefix.find(key, key.length() - 1, accept);
}

inline std::vector<int32_t> ids(const BlockTable& table) { return {table.ids().begin(), table.ids().end()}; }

inline void expect_all_free(Cache& cache) {
  EXPECT_EQ(cache.blocks.free(), cache.blocks.size());
  EXPECT_EQ(cache.snapshots.free(), cache.snapshots.size());
  EXPECT_EQ(cache.slots.free(), cache.slots.size());
  EXPECT_EQ(cache.prefix.nodes(), 0);
}

inline constexpr CacheSizes kSizes{.blocks = 32, .slots = 4, .snapshots = 8};

}  // namespace mdi::testing
