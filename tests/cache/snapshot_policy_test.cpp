#include "cache/snapshot_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace mdi {
namespace {

using Positions = std::vector<int64_t>;

TEST(SnapshotPolicy, EveryThirtyTwoBlocksAndAtTheEnd) {
  EXPECT_EQ(snapshot_positions(0, 300, 0), (Positions{300}));
  EXPECT_EQ(snapshot_positions(0, 10000, 0), (Positions{4096, 8192, 10000}));
  EXPECT_EQ(snapshot_positions(0, 8192, 0), (Positions{4096, 8192}));
  EXPECT_EQ(snapshot_positions(4096, 10000, 0), (Positions{8192, 10000}));
  EXPECT_EQ(snapshot_positions(5000, 10000, 0), (Positions{8192, 10000}));
  EXPECT_EQ(snapshot_positions(300, 300, 0), (Positions{}));
}

TEST(SnapshotPolicy, AndWhereRequestsPart) {
  EXPECT_EQ(snapshot_positions(0, 10000, 1280), (Positions{1280, 4096, 8192, 10000}));
  EXPECT_EQ(snapshot_positions(0, 5000, 4096), (Positions{4096, 5000}));
  EXPECT_EQ(snapshot_positions(2000, 3000, 1280), (Positions{3000}));  // known already
  EXPECT_EQ(snapshot_positions(0, 1280, 1280), (Positions{1280}));
}

TEST(SnapshotPolicy, NeverAtEveryBlockOfALongPrompt) {
  const int64_t tokens = 131072;
  EXPECT_EQ(snapshot_positions(0, tokens, 0).size(), static_cast<size_t>(tokens / 128 / 32));
}

}  // namespace
}  // namespace mdi
