// The blocks of a sequence: growing, forking, and copying before writing.
#include "cache/block_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace mdi {
namespace {

std::vector<int32_t> ids(const BlockTable& table) { return {table.ids().begin(), table.ids().end()}; }

TEST(BlockTable, GrowsByTheBlocksThatTokensNeed) {
  BlockPool pool(4);
  BlockTable table;
  std::vector<CopyBlock> copies;
  EXPECT_EQ(table.needed(0, 0), 0);
  EXPECT_EQ(table.needed(0, 1), 1);
  EXPECT_EQ(table.needed(0, 128), 1);
  EXPECT_EQ(table.needed(0, 129), 2);
  ASSERT_TRUE(table.reserve(pool, 0, 129, copies));
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(table.needed(129, 127), 0);
  ASSERT_TRUE(table.reserve(pool, 129, 127, copies));
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(table.needed(256, 1), 1);
  EXPECT_TRUE(copies.empty());
}

TEST(BlockTable, TakesAllOrNothing) {
  BlockPool pool(2);
  BlockTable table;
  std::vector<CopyBlock> copies;
  EXPECT_FALSE(table.reserve(pool, 0, 257, copies));
  EXPECT_EQ(pool.free(), 2);
  EXPECT_EQ(table.size(), 0);
  EXPECT_TRUE(table.reserve(pool, 0, 256, copies));
}

TEST(BlockTable, AForkCopiesThePartialBlockWhenItWrites) {
  BlockPool pool(8);
  BlockTable a;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(a.reserve(pool, 0, 300, copies));
  BlockTable b = a.fork();
  EXPECT_EQ(ids(a), ids(b));
  EXPECT_EQ(pool.held(), 3);

  // Only the third block is written; the first two stay shared.
  EXPECT_EQ(b.needed(300, 1), 1);
  const int32_t shared = a.ids()[2];
  ASSERT_TRUE(b.reserve(pool, 300, 1, copies));
  EXPECT_EQ(copies, (std::vector<CopyBlock>{{.from = shared, .to = b.ids()[2]}}));
  EXPECT_EQ(a.ids()[0], b.ids()[0]);
  EXPECT_EQ(a.ids()[1], b.ids()[1]);
  EXPECT_NE(a.ids()[2], b.ids()[2]);

  // Now nobody shares it with a: it writes where it is.
  copies.clear();
  EXPECT_EQ(a.needed(300, 1), 0);
  ASSERT_TRUE(a.reserve(pool, 300, 1, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(a.ids()[2], shared);
}

TEST(BlockTable, OfSeveralSamplesTheLastKeepsTheBlock) {
  BlockPool pool(8);
  BlockTable first;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(first.reserve(pool, 0, 130, copies));
  std::vector<BlockTable> samples;
  samples.push_back(first.fork());
  samples.push_back(first.fork());
  samples.push_back(first.fork());
  first.clear();
  for (BlockTable& sample : samples) ASSERT_TRUE(sample.reserve(pool, 130, 1, copies));
  EXPECT_EQ(copies.size(), 2u);
  EXPECT_EQ(pool.held(), 1 + 3);
}

TEST(BlockTable, AForkAtABlocksEndCopiesNothing) {
  BlockPool pool(4);
  BlockTable a;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(a.reserve(pool, 0, 256, copies));
  BlockTable b = a.fork();
  ASSERT_TRUE(a.reserve(pool, 256, 1, copies));
  ASSERT_TRUE(b.reserve(pool, 256, 1, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_NE(a.ids()[2], b.ids()[2]);
}

TEST(BlockTable, WithoutRoomForTheCopyNothingChanges) {
  BlockPool pool(2);
  BlockTable a;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(a.reserve(pool, 0, 200, copies));
  BlockTable b = a.fork();
  EXPECT_FALSE(b.reserve(pool, 200, 10, copies));
  EXPECT_EQ(ids(a), ids(b));
  EXPECT_TRUE(copies.empty());
  a.clear();  // the copy is not needed any more
  EXPECT_TRUE(b.reserve(pool, 200, 10, copies));
  EXPECT_TRUE(copies.empty());
}

TEST(BlockTable, TruncatingGivesBlocksUp) {
  BlockPool pool(4);
  BlockTable table;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(table.reserve(pool, 0, 400, copies));
  table.truncate(257);
  EXPECT_EQ(table.size(), 3);
  table.truncate(256);
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(table.ids().size(), 2u);
  table.clear();
  EXPECT_EQ(pool.free(), 4);
}

TEST(BlockTableDeathTest, AGapEndsTheProcess) {
  BlockPool pool(4);
  BlockTable table;
  std::vector<CopyBlock> copies;
  EXPECT_DEATH(table.reserve(pool, 1, 1, copies), "gap");
}

}  // namespace
}  // namespace mdi
