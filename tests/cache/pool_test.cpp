// Who holds what: handles count themselves, and what they cannot express does not compile.
#include "cache/pool.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace mdi {
namespace {

template <class R>
concept CanShare = requires(const R& ref) {
  ref.share();
};
template <class R>
concept CanKeep = requires(const R& ref) {
  ref.keep();
};
template <class P>
concept CanFreeById = requires(P& pool) {
  pool.release(0);
}
|| requires(P& pool) { pool.give_back(0); };

// A handle is one claim: two of them for one claim, a claim made from a number, or a slot for two sequences do not
// compile, and neither does freeing what is only named.
static_assert(!std::is_copy_constructible_v<BlockRef> && !std::is_copy_assignable_v<BlockRef>);
static_assert(std::is_nothrow_move_constructible_v<BlockRef> && std::is_nothrow_move_assignable_v<BlockRef>);
static_assert(!std::is_constructible_v<BlockRef, int32_t> && !std::is_constructible_v<BlockRef, BlockPool*, int32_t>);
static_assert(CanShare<BlockRef> && CanKeep<BlockRef> && CanShare<SnapshotRef>);
static_assert(!CanShare<SlotRef> && !CanKeep<SlotRef>);
static_assert(!CanFreeById<BlockPool> && !CanFreeById<SlotPool>);
static_assert(!std::is_convertible_v<SlotRef, BlockRef>);
static_assert(!std::is_copy_constructible_v<BlockPool> && !std::is_move_constructible_v<BlockPool>);

TEST(Pool, GivesEachThingOnceAndThenNone) {
  BlockPool pool(3);
  std::vector<BlockRef> refs;
  std::vector<int> times(3);
  for (int i = 0; i < 3; ++i) {
    refs.push_back(pool.take());
    ++times.at(static_cast<size_t>(refs.back().id()));
  }
  EXPECT_EQ(times, (std::vector<int>{1, 1, 1}));
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.free(), 0);
  refs[1].reset();
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.held(), 2);
  EXPECT_TRUE(pool.take());
}

TEST(Pool, AThingIsFreeWhenItsLastHolderIsGone) {
  BlockPool pool(2);
  BlockRef first = pool.take();
  BlockRef second = first.share();
  EXPECT_EQ(first.id(), second.id());
  EXPECT_EQ(first.holders(), 2);
  first.reset();
  EXPECT_EQ(pool.held(), 1);
  EXPECT_EQ(second.holders(), 1);
  second = {};
  EXPECT_EQ(pool.held(), 0);
}

TEST(Pool, MovingAHandleMovesTheClaim) {
  BlockPool pool(2);
  BlockRef a = pool.take();
  const int32_t id = a.id();
  BlockRef b = std::move(a);
  EXPECT_EQ(b.id(), id);
  EXPECT_EQ(pool.held(), 1);
  b = pool.take();  // gives up what it held
  EXPECT_NE(b.id(), id);
  EXPECT_EQ(pool.held(), 1);
  BlockRef& same = b;
  b = std::move(same);
  EXPECT_TRUE(b);
  EXPECT_EQ(pool.held(), 1);
}

TEST(Pool, IdleIsWhatOnlyTheCacheKeeps) {
  BlockPool pool(2);
  BlockRef user = pool.take();
  BlockRef kept = user.keep();
  EXPECT_EQ(pool.idle(), 0);
  user.reset();
  EXPECT_EQ(pool.idle(), 1);
  BlockRef again = kept.share();
  EXPECT_EQ(pool.idle(), 0);
  BlockRef kept_twice = kept.keep();
  again.reset();
  EXPECT_EQ(pool.idle(), 1);
  kept.reset();
  EXPECT_EQ(pool.idle(), 1);
  BlockRef moved = std::move(kept_twice);
  EXPECT_EQ(pool.idle(), 1);
  moved.reset();
  EXPECT_EQ(pool.idle(), 0);
  EXPECT_EQ(pool.free(), 2);
}

TEST(Pool, OfNothingHasNothing) {
  SlotPool pool(0);
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.size(), 0);
}

TEST(PoolDeathTest, AnEmptyHandleEndsTheProcess) {
  BlockPool pool(1);
  BlockRef ref = pool.take();
  ref.reset();
  ref.reset();  // nothing is held: nothing happens
  EXPECT_EQ(pool.free(), 1);
  EXPECT_DEATH((void)ref.id(), "an empty handle is used");
  EXPECT_DEATH((void)ref.share(), "an empty handle is used");
}

TEST(PoolDeathTest, APoolOutlivesItsHandles) {
  EXPECT_DEATH(
      {
        BlockRef ref;
        BlockPool pool(1);
        ref = pool.take();
      },
      "a pool ends while handles to it are alive");
}

}  // namespace
}  // namespace mdi
