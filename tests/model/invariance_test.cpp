// A row's result does not depend on chunking, on the batch or on the number of threads: the same bits.
//
// The sequence is 1,100 tokens, and every row's logits are compared, so every visible length from 1 to 1,100 is
// covered: the window's edge, the edges of index_topk and of candidate_topk_blocks x block size, partial candidate
// blocks, odd remainders of ratio 2.
#include <gtest/gtest.h>

#include "tiny_model.h"

namespace mdi {
namespace {

using testing::first_difference;
using testing::Runner;
using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

constexpr int64_t kLength = 1100;

const std::vector<float>& whole() {
  static const std::vector<float> logits = [] {
    Runner runner(tiny_model(), 1, kLength, kLength);
    return runner.run({{0, 0, some_tokens(kLength, 1)}});
  }();
  return logits;
}

std::vector<float> in_chunks(int64_t chunk, int threads = 2) {
  Runner runner(tiny_model(), 1, kLength, static_cast<int32_t>(chunk), threads);
  const auto tokens = some_tokens(kLength, 1);
  std::vector<float> all;
  for (int64_t at = 0; at < kLength; at += chunk) {
    const auto part = runner.run({{0, static_cast<int32_t>(at), slice(tokens, at, std::min(at + chunk, kLength))}});
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class Chunks : public ::testing::TestWithParam<int64_t> {};

TEST_P(Chunks, GiveTheSameBitsAsOneChunk) {
  EXPECT_EQ(first_difference(in_chunks(GetParam()), whole(), tiny_model().config().vocab_size), -1);
}
INSTANTIATE_TEST_SUITE_P(Lengths, Chunks, ::testing::Values(1, 7, 15, 16, 17, 64, 1000));

TEST(Invariance, OneThreadGivesTheSameBits) {
  EXPECT_EQ(first_difference(in_chunks(64, 1), whole(), tiny_model().config().vocab_size), -1);
}

TEST(Invariance, FourOtherSequencesInTheBatchChangeNothing) {
  const int64_t vocab = tiny_model().config().vocab_size;
  Runner runner(tiny_model(), 5, kLength, 400);
  const auto mine = some_tokens(kLength, 1);
  std::vector<std::vector<int32_t>> others;
  for (uint32_t s = 1; s < 5; ++s) others.push_back(some_tokens(kLength, 10 + s));
  const int64_t lengths[4] = {1, 3, 64, 17};  // of the others' chunks
  int64_t starts[4] = {};
  std::vector<float> all;
  for (int64_t at = 0; at < kLength; at += 30) {
    std::vector<Runner::Part> parts;
    int64_t before = 0;
    for (int32_t s = 0; s < 4; ++s) {
      // Two of the others stand before this sequence in the batch and two behind it.
      if (s == 2) parts.push_back({2, static_cast<int32_t>(at), slice(mine, at, std::min(at + 30, kLength))});
      const int32_t slot = s < 2 ? s : s + 1;
      const int64_t end = std::min(starts[s] + lengths[s], kLength);
      parts.push_back({slot, static_cast<int32_t>(starts[s]), slice(others[static_cast<size_t>(s)], starts[s], end)});
      if (s < 2) before += end - starts[s];
      starts[s] = end;
    }
    const auto logits = runner.run(parts);
    const auto begin = logits.begin() + before * vocab;
    all.insert(all.end(), begin, begin + static_cast<int64_t>(parts[2].tokens.size()) * vocab);
  }
  EXPECT_EQ(first_difference(all, whole(), vocab), -1);
}

TEST(Invariance, ASlotThatIsUsedAgainStartsEmpty) {
  Runner runner(tiny_model(), 1, kLength, 300);
  runner.run({{0, 0, some_tokens(300, 7)}});
  clear_slot(*runner.context, runner.state, 0);
  const auto logits = runner.run({{0, 0, slice(some_tokens(kLength, 1), 0, 100)}});
  const std::vector<float> expected(whole().begin(), whole().begin() + static_cast<int64_t>(logits.size()));
  EXPECT_EQ(first_difference(logits, expected, tiny_model().config().vocab_size), -1);
}

TEST(Invariance, AnEmptyStepIsLegal) {
  Runner runner(tiny_model(), 2, 200, 8);
  EXPECT_TRUE(runner.run({}).empty());
  EXPECT_TRUE(runner.run({{0, 0, {}}}).empty());
}

}  // namespace
}  // namespace mdi
