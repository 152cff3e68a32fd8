// Who has to go when room is needed, and who never does; and that what has gone leaves nothing held.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cached_sequence.h"

namespace mdi {
namespace {

using testing::counting;
using testing::expect_all_free;
using testing::find;
using testing::join;
using testing::kSizes;
using testing::Sequence;

TEST(PrefixEviction, AFullSnapshotPoolEvictsTheLeastRecentlyUsed) {
  Cache cache({.blocks = 32, .slots = 1, .snapshots = 3});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int32_t i = 0; i < 3; ++i) {
    sequences.push_back(std::make_unique<Sequence>(cache, counting(200, 1000 * i)));
    EXPECT_NE(sequences.back()->publish(), -1);
  }
  EXPECT_EQ(find(cache, counting(300, 0)).position, 200);  // the first is used again
  Sequence fourth(cache, counting(200, 9000));
  EXPECT_NE(fourth.publish(), -1);
  EXPECT_EQ(find(cache, counting(300, 0)).position, 200);
  EXPECT_EQ(find(cache, counting(300, 1000)).position, 0);  // the second was the oldest
  EXPECT_EQ(find(cache, counting(300, 2000)).position, 200);
  EXPECT_EQ(cache.prefix.snapshots(), 3);
}

TEST(PrefixEviction, AHeldSnapshotIsNeverEvicted) {
  Cache cache({.blocks = 32, .slots = 1, .snapshots = 2});
  Sequence first(cache, counting(200)), second(cache, counting(200, 1000));
  first.publish();
  second.publish();
  const PrefixHit oldest = find(cache, counting(300));
  const PrefixHit newest = find(cache, counting(300, 1000));
  Sequence third(cache, counting(200, 2000));
  EXPECT_FALSE(cache.prefix.take_snapshot());
  EXPECT_EQ(third.publish(), -1);
  EXPECT_FALSE(cache.prefix.make_room(32));
  cache.prefix.clear();
  EXPECT_EQ(cache.prefix.snapshots(), 2);
  EXPECT_EQ(find(cache, counting(300)).position, 200);
}

TEST(PrefixEviction, BlocksThatASequenceHoldsAreNotGivenAway) {  // faults: eviction of what is shared
  Cache cache({.blocks = 8, .slots = 1, .snapshots = 4});
  Sequence running(cache, counting(4 * 128));
  running.publish();
  {
    Sequence ended(cache, counting(3 * 128, 7000));
    ended.publish();
  }
  EXPECT_EQ(cache.blocks.free(), 1);
  EXPECT_EQ(cache.prefix.available(), 4);
  EXPECT_FALSE(cache.prefix.make_room(5));
  EXPECT_EQ(cache.prefix.snapshots(), 2);  // nothing was evicted in vain
  EXPECT_TRUE(cache.prefix.make_room(4));
  EXPECT_EQ(cache.prefix.snapshots(), 1);
  EXPECT_EQ(find(cache, counting(600)).position, 512);
  EXPECT_EQ(running.blocks.size(), 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_GE(running.blocks.block(i).holders(), 2);
}

TEST(PrefixEviction, RoomIsMadeFromTheEndOfALongPrefix) {
  Cache cache({.blocks = 8, .slots = 1, .snapshots = 4});
  {
    Sequence long_one(cache, counting(8 * 128));
    for (int64_t position : {2, 4, 6, 8}) long_one.publish(position * 128);
  }
  EXPECT_TRUE(cache.prefix.make_room(1));
  // The snapshot at 2 is the oldest, but evicting it frees no block: others lie above it.
  EXPECT_EQ(cache.blocks.free(), 2);
  EXPECT_EQ(find(cache, counting(2000)).position, 6 * 128);
  EXPECT_TRUE(cache.prefix.make_room(6));
  EXPECT_EQ(find(cache, counting(2000)).position, 2 * 128);
}

TEST(PrefixEviction, EvictingTheEndKeepsWhatOthersNeed) {
  Cache cache(kSizes);
  {
    Sequence a(cache, join(counting(256), counting(100, 7000)));
    a.publish();
    Sequence b(cache, join(counting(256), counting(100, 8000)));
    b.publish();
  }
  EXPECT_EQ(cache.blocks.held(), 2 + 2);
  EXPECT_TRUE(cache.prefix.make_room(cache.blocks.free() + 1));
  EXPECT_EQ(cache.blocks.held(), 2 + 1);
  EXPECT_EQ(find(cache, join(counting(256), counting(101, 8000))).position, 356);
}

// Two sequences computed one prefix at the same time; the blocks of one of them are in the tree.
TEST(PrefixEviction, RoomIsMadeBelowABlockThatIsInUse) {
  Cache cache({.blocks = 8, .slots = 1, .snapshots = 4});
  auto first = std::make_unique<Sequence>(cache, counting(256));
  Sequence second(cache, counting(384));
  first->publish();
  second.publish();
  first.reset();
  EXPECT_EQ(cache.blocks.held(), 5);
  EXPECT_EQ(cache.blocks.idle(), 2);
  EXPECT_TRUE(cache.prefix.make_room(5));
  EXPECT_EQ(cache.blocks.held(), 3);
  EXPECT_EQ(second.blocks.size(), 3);
}

// Two snapshots of one position keep one partial block: neither alone frees it.
TEST(PrefixEviction, RoomIsMadeFromSnapshotsThatShareABlock) {
  Cache cache({.blocks = 2, .slots = 1, .snapshots = 4});
  {
    Sequence first(cache, counting(100));
    first.publish(100, "");
    first.publish(100, "replayed");
  }
  EXPECT_EQ(cache.prefix.available(), 2);
  EXPECT_TRUE(cache.prefix.make_room(2));
  EXPECT_EQ(cache.blocks.free(), 2);
}

TEST(PrefixEviction, AnAbortedRequestLeaksNothing) {  // faults: aborted requests leak blocks
  Cache cache(kSizes);
  {
    Sequence first(cache, counting(300));
    SnapshotRef buffer = cache.prefix.take_snapshot();  // cancelled before the copy was made
    BlockTable fork = first.blocks.fork();
    SlotRef slot = cache.slots.take();
  }
  expect_all_free(cache);
  {
    Sequence first(cache, counting(300));
    first.publish();
    PrefixHit hit = find(cache, counting(400));  // cancelled before it ran
    EXPECT_EQ(hit.position, 300);
  }
  EXPECT_EQ(cache.blocks.held(), cache.blocks.idle());
  EXPECT_EQ(cache.prefix.available(), cache.blocks.size());
  cache.prefix.clear();
  expect_all_free(cache);
}

TEST(PrefixEviction, TheFirstIsCancelledInMidPrefillAndTheSecondStillMatches) {
  Cache cache(kSizes);
  auto first = std::make_unique<Sequence>(cache, counting(4 * 128));
  first->publish(256);
  first.reset();
  const PrefixHit hit = find(cache, counting(1000));
  EXPECT_EQ(hit.position, 256);
  EXPECT_EQ(cache.blocks.held(), 2);
}

}  // namespace
}  // namespace mdi
