// How prompts are cut under bounded replay, and what is recorded of them: plain arithmetic.
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/replay.h"

namespace mdi {
namespace {

using Chunks = std::vector<ReplayChunk>;

TEST(ReplayPlan, Examples) {
  EXPECT_EQ(plan_replay(0, 0, 10, 4), (Chunks{{0, 4, 4}, {4, 4, 4}, {8, 2, 2}}));
  EXPECT_EQ(plan_replay(128, 0, 1000, 512), (Chunks{{0, 512, 0}, {512, 488, 128}}));
  // The last chunk would have 76 tokens: the one before gives some up.
  EXPECT_EQ(plan_replay(128, 0, 1100, 512), (Chunks{{0, 512, 0}, {512, 460, 0}, {972, 128, 128}}));
  EXPECT_EQ(plan_replay(140, 7, 147, 512), (Chunks{{7, 140, 140}}));
  EXPECT_EQ(plan_replay(128, 500, 600, 60), (Chunks{{500, 60, 60}, {560, 40, 40}}));
  EXPECT_TRUE(plan_replay(128, 5, 5, 60).empty());
}

TEST(ReplayPlan, WhatHoldsForEveryPlan) {
  for (const int32_t rows : {0, 1, 3, 8, 13}) {
    for (const int32_t start : {0, 5}) {
      for (int32_t length = 1; length <= 60; ++length) {
        for (const int32_t limit : {1, 2, 7, 8, 9, 16, 100}) {
          const auto chunks = plan_replay(rows, start, start + length, limit);
          const int32_t tail = std::min(rows, length);
          int32_t at = start, kept = 0;
          for (const ReplayChunk& c : chunks) {
            ASSERT_EQ(c.start, at);
            ASSERT_TRUE(c.count >= 1 && c.count <= limit);
            ASSERT_TRUE(c.kept >= 0 && c.kept <= c.count);
            ASSERT_TRUE(kept == 0 || c.kept == c.count);  // the kept rows are the last ones
            at += c.count;
            kept += c.kept;
          }
          ASSERT_EQ(at, start + length);
          ASSERT_EQ(kept, rows == 0 ? length : tail);
          ASSERT_TRUE(limit < tail || chunks.back().count >= tail) << rows << " " << length << " " << limit;
          // No more steps than plain chunks would take, and one for the tail.
          ASSERT_LE(static_cast<int32_t>(chunks.size()), (length + limit - 1) / limit + 1);
        }
      }
    }
  }
}

TEST(ReplayPlan, ChunksOfChangingSize) {
  const ReplaySegment segment = replay_segment(128, 0, 700);
  EXPECT_EQ(next_chunk(128, segment, 0, 512), 512);
  EXPECT_EQ(next_chunk(128, segment, 512, 512), 188);
  EXPECT_EQ(next_chunk(128, segment, 512, 100), 60);   // 88 would be left
  EXPECT_EQ(next_chunk(128, segment, 572, 100), 100);  // the tail alone, in a step too small for it
  EXPECT_EQ(next_chunk(128, segment, 672, 100), 28);
}

TEST(ReplayPlan, TheFloorIsThatOfTheLastSegmentThatDropped) {
  EXPECT_EQ(replay_from({}), 0);
  const std::vector<ReplaySegment> segments = {replay_segment(128, 0, 500), replay_segment(128, 520, 600)};
  EXPECT_EQ(segments[0], (ReplaySegment{0, 500, 372}));
  EXPECT_EQ(segments[1], (ReplaySegment{520, 600, 520}));
  EXPECT_EQ(replay_from(segments), 372);
}

TEST(ReplayPlan, PiecesOfASequence) {
  using Pieces = std::vector<ReplayPiece>;
  const std::vector<ReplaySegment> segments = {{0, 500, 372}, {520, 600, 520}, {610, 900, 772}};
  EXPECT_EQ(replay_pieces(segments, 950), (Pieces{{0, 610, 372}, {610, 950, 772}}));
  EXPECT_EQ(replay_pieces(segments, 560), (Pieces{{0, 560, 372}}));
  EXPECT_EQ(replay_pieces({}, 560), (Pieces{{0, 560, 0}}));
  EXPECT_TRUE(replay_pieces(segments, 0).empty());
  EXPECT_THROW(replay_pieces(segments, 700), Error);  // inside the second prompt's dropped rows
}

TEST(ReplayPlan, Refusals) {
  EXPECT_THROW(plan_replay(128, 0, 10, 0), Error);
  EXPECT_THROW(plan_replay(-1, 0, 10, 5), Error);
  EXPECT_THROW(plan_replay(128, 10, 5, 5), Error);
  EXPECT_THROW(plan_replay(128, -1, 5, 5), Error);
}

}  // namespace
}  // namespace mdi
