// The two phases of a step: what is not accepted never happened, and what is accepted leaves the state that decoding
// token by token leaves.
#include <gtest/gtest.h>

#include "tiny_model.h"

namespace mdi {
namespace {

using testing::first_difference;
using testing::Runner;
using testing::slice;
using testing::some_tokens;
using testing::tiny_model;

// All state that a later step can read: rings, pending rows where the length is odd, history, visible cache rows.
std::vector<std::byte> visible_state(const Runner& r, int32_t length) {
  std::vector<std::byte> bytes;
  const auto add = [&bytes](const void* from, int64_t size) {
    const auto* b = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), b, b + size);
  };
  const StatePools& s = r.state;
  for (int layer = 0; layer < s.layers; ++layer) {
    const RingView ring = s.ring(layer);
    for (int32_t p = std::max(0, length - s.window); p < length; ++p) {
      add(ring.base + p % s.window * ring.row.bytes(), ring.row.bytes());
    }
  }
  for (size_t k = 0; k < s.cache.sources.size(); ++k) {
    const SourceCache cache = s.source(static_cast<int>(k));
    const SourceLayout& l = cache.layout;
    if (l.ratio == 2 && length % 2 == 1) {
      add(s.pending_of(static_cast<int>(k)), 2 * s.head_dim * static_cast<int64_t>(sizeof(float)));
    }
    for (int32_t j = 0; j < length / l.ratio; ++j) {
      std::byte* block = cache.blocks + r.blocks[0][static_cast<size_t>(j / l.rows)] * cache.block_bytes;
      const int32_t row = j % l.rows;
      add(l.key_codes_at(block, row), l.key_dim / 2);
      add(l.key_scales_at(block, row), l.key_dim / 32);
      add(l.kv_codes_at(block, row), l.head_dim / 2);
      add(l.kv_scales_at(block, row), l.head_dim / 16);
    }
  }
  add(s.history.as<int32_t>(), s.history_depth * static_cast<int64_t>(sizeof(int32_t)));
  return bytes;
}

// Every accepted length of a block of six, from starts with full and half-full pairs, before and after the ring wraps,
// and so early that the n-grams reach before the start.
TEST(Commit, AnyAcceptedLengthEqualsDecodingThoseTokens) {
  const auto tokens = some_tokens(80, 3);
  const auto wrong = some_tokens(80, 4);
  for (int32_t start : {0, 1, 2, 14, 15, 16, 31, 32, 33, 60}) {
    for (int32_t accepted = 0; accepted <= 6; ++accepted) {
      Runner drafted(tiny_model(), 1, 128, 64);
      Runner decoded(tiny_model(), 1, 128, 64);
      if (start > 0) {
        drafted.run({{0, 0, slice(tokens, 0, start)}});
        decoded.run({{0, 0, slice(tokens, 0, start)}});
      }
      auto block = slice(tokens, start, start + accepted);
      const auto rest = slice(wrong, start, start + 6 - accepted);
      block.insert(block.end(), rest.begin(), rest.end());
      drafted.run({{0, start, block}}, {accepted});
      for (int32_t i = 0; i < accepted; ++i) decoded.run({{0, start + i, slice(tokens, start + i, start + i + 1)}});

      const int32_t length = start + accepted;
      ASSERT_EQ(visible_state(drafted, length), visible_state(decoded, length)) << start << " + " << accepted;
      const auto next = slice(tokens, length, length + 8);
      ASSERT_EQ(first_difference(drafted.run({{0, length, next}}), decoded.run({{0, length, next}}),
                                 tiny_model().config().vocab_size),
                -1)
          << start << " + " << accepted;
    }
  }
}

TEST(Commit, RefusesCountsThatAreNotOfTheStep) {
  Runner runner(tiny_model(), 1, 128, 16);
  EXPECT_THROW(runner.run({{0, 0, {1, 2, 3}}}, {4}), std::exception);
  EXPECT_THROW(runner.run({{0, 0, {1, 2, 3}}}, {-1}), std::exception);
}

TEST(Step, RefusesWhatDoesNotFit) {
  Runner runner(tiny_model(), 2, 128, 16);
  EXPECT_THROW(runner.run({{0, 0, {512}}}), std::exception);  // not in the vocabulary
  EXPECT_THROW(runner.run({{0, 0, {-1}}}), std::exception);
  EXPECT_THROW(runner.run({{0, 127, {1, 2}}}), std::exception);          // block table too short
  EXPECT_THROW(runner.run({{0, 0, {1}}, {0, 1, {1}}}), std::exception);  // a slot twice
  EXPECT_THROW(runner.run({{0, -1, {1}}}), std::exception);
  EXPECT_THROW(runner.run({{0, 0, std::vector<int32_t>(17, 1)}}), std::exception);  // more rows than buffers
}

}  // namespace
}  // namespace mdi
