// Prefixes that requests share, as stories.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cached_sequence.h"

namespace mdi {
namespace {

using testing::accept_any;
using testing::accept_exact;
using testing::counting;
using testing::find;
using testing::ids;
using testing::join;
using testing::kSizes;
using testing::Sequence;

TEST(PrefixCache, AnEmptyCacheHasNothing) {
  Cache cache(kSizes);
  const PrefixHit hit = find(cache, counting(500));
  EXPECT_EQ(hit.position, 0);
  EXPECT_EQ(hit.blocks.size(), 0);
  EXPECT_FALSE(hit.snapshot);
  EXPECT_EQ(hit.branch, 0);
}

TEST(PrefixCache, TheNextTurnGoesOnWhereTheAnswerEnded) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  first.publish();
  first.grow(counting(100, 5000));
  const int32_t answer_end = first.publish();
  const std::vector<int32_t> table = ids(first.blocks);
  const PrefixHit hit = find(cache, join(join(counting(300), counting(100, 5000)), counting(50, 9000)));
  EXPECT_EQ(hit.position, 400);
  EXPECT_EQ(hit.snapshot.id(), answer_end);
  EXPECT_EQ(ids(hit.blocks), table);
}

TEST(PrefixCache, BlocksAloneAreNoHit) {  // faults: compressed rows without the window state
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  first.publish(300);
  // 256 tokens are known as blocks, but the state at 256 is not.
  const PrefixHit hit = find(cache, join(counting(256), counting(100, 7000)));
  EXPECT_EQ(hit.position, 0);
  EXPECT_EQ(hit.blocks.size(), 0);
  EXPECT_EQ(hit.branch, 256);
}

TEST(PrefixCache, ASnapshotWhereRequestsPartServesTheThird) {
  Cache cache(kSizes);
  Sequence first(cache, join(counting(256), counting(100, 7000)));
  first.publish();
  const auto second_prompt = join(counting(256), counting(100, 8000));
  const PrefixHit miss = find(cache, second_prompt);
  ASSERT_EQ(miss.branch, 256);
  Sequence second(cache, std::vector<int32_t>(second_prompt.begin(), second_prompt.begin() + 256));
  const int32_t at_branch = second.publish();
  const PrefixHit hit = find(cache, join(counting(256), counting(100, 9000)));
  EXPECT_EQ(hit.position, 256);
  EXPECT_EQ(hit.snapshot.id(), at_branch);
  EXPECT_EQ(ids(hit.blocks), (std::vector<int32_t>{first.blocks.ids()[0], first.blocks.ids()[1]}));
  EXPECT_EQ(hit.branch, 0);
}

TEST(PrefixCache, ThePromptItselfNeedsASnapshotOneTokenEarlier) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  first.publish(300);
  EXPECT_EQ(find(cache, counting(300)).position, 0);
  first.publish(299);
  EXPECT_EQ(find(cache, counting(300)).position, 299);
}

TEST(PrefixCache, APromptOfLessThanABlockIsFound) {
  Cache cache(kSizes);
  Sequence first(cache, counting(50));
  first.publish();
  const PrefixHit hit = find(cache, counting(60));
  EXPECT_EQ(hit.position, 50);
  EXPECT_EQ(hit.blocks.size(), 1);
  EXPECT_EQ(find(cache, join(counting(49), {7, 7, 7})).position, 0);
}

TEST(PrefixCache, WhoeverGoesOnFromAPartialBlockCopiesIt) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  first.publish();
  const int32_t shared = first.blocks.ids()[2];

  // The one that computed it, and two that found it, all write behind token 300: nobody into the shared block.
  std::vector<CopyBlock> copies = first.grow({1});
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, shared);
  for (int i = 0; i < 2; ++i) {
    PrefixHit hit = find(cache, join(counting(300), {2, 3}));
    ASSERT_EQ(hit.position, 300);
    EXPECT_EQ(hit.blocks.ids()[2], shared);
    std::vector<CopyBlock> more;
    ASSERT_TRUE(hit.blocks.reserve(cache.blocks, 300, 1, more));
    ASSERT_EQ(more.size(), 1u);
    EXPECT_EQ(more[0].from, shared);
    EXPECT_NE(more[0].to, shared);
    EXPECT_NE(more[0].to, first.blocks.ids()[2]);
  }
  EXPECT_EQ(find(cache, join(counting(300), {2, 3})).blocks.ids()[2], shared);
}

TEST(PrefixCache, AnotherTenantsPrefixIsNeverFound) {  // faults: keyed by tokens alone
  Cache cache(kSizes);
  Sequence first(cache, counting(300), "tenant a");
  first.publish();
  EXPECT_EQ(find(cache, counting(400), accept_exact, "tenant b").position, 0);
  EXPECT_EQ(find(cache, counting(400), accept_exact).position, 0);
  EXPECT_EQ(find(cache, counting(400), accept_exact, "tenant b").branch, 0);
  EXPECT_EQ(find(cache, counting(400), accept_exact, "tenant a").position, 300);
}

TEST(PrefixCache, AnotherImageUnderTheSameTokensIsNeverFound) {  // faults: keyed by tokens alone
  Cache cache(kSizes);
  const std::vector<std::byte> cat(100, std::byte{1}), dog(100, std::byte{2});
  const auto with_image = [&](const std::vector<std::byte>& bytes, int64_t start, int64_t count) {
    PrefixKey key(cache.hasher);
    key.add_image({.start = start, .count = count, .digest = cache.hasher.digest(bytes)});
    key.append(std::vector<int32_t>(500, 9));
    return key;
  };
  Sequence first(cache);
  first.key.add_image({.start = 100, .count = 200, .digest = cache.hasher.digest(cat)});
  first.grow(std::vector<int32_t>(350, 9));
  first.publish(128);  // inside the span, at a block's end
  first.publish(200);  // inside the span
  first.publish(350);
  const auto position = [&](const PrefixKey& key) {
    return cache.prefix.find(key, key.length() - 1, accept_exact).position;
  };
  EXPECT_EQ(position(with_image(cat, 100, 200)), 350);
  EXPECT_EQ(position(with_image(dog, 100, 200)), 0);
  EXPECT_EQ(position(with_image(cat, 101, 200)), 0);
  EXPECT_EQ(position(with_image(cat, 100, 201)), 0);
  EXPECT_EQ(find(cache, std::vector<int32_t>(500, 9)).position, 0);

  // All of it in a partial block, of which there is no hash.
  Sequence second(cache, "tenant");
  second.key.add_image({.start = 10, .count = 30, .digest = cache.hasher.digest(cat)});
  second.grow(std::vector<int32_t>(50, 9));
  second.publish(20);
  second.publish(50);
  for (const auto& [bytes, expected] : {std::pair(cat, 50), std::pair(dog, 0)}) {
    PrefixKey key(cache.hasher, "tenant");
    key.add_image({.start = 10, .count = 30, .digest = cache.hasher.digest(bytes)});
    key.append(std::vector<int32_t>(60, 9));
    EXPECT_EQ(position(key), expected);
  }
}

// A prefix of text in front of an image is the same whatever image follows.
TEST(PrefixCache, TextInFrontOfAnImageIsShared) {
  Cache cache(kSizes);
  Sequence first(cache, counting(200));
  first.publish();
  PrefixKey key(cache.hasher);
  key.add_image({.start = 200, .count = 50, .digest = {}});
  key.append(counting(200));
  key.append(std::vector<int32_t>(60, 9));
  EXPECT_EQ(cache.prefix.find(key, 259, accept_exact).position, 200);
}

TEST(PrefixCache, ReplayHistoryIsPartOfTheKey) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  const int32_t replayed = first.publish(300, "0-300:172");
  EXPECT_EQ(find(cache, counting(400)).position, 0);  // exact refuses it
  const int32_t exact = first.publish(300, "");
  ASSERT_NE(exact, -1);
  EXPECT_EQ(find(cache, counting(400)).snapshot.id(), exact);
  const PrefixHit hit = find(cache, counting(400), [](int64_t, std::string_view h) { return h == "0-300:172"; });
  EXPECT_EQ(hit.snapshot.id(), replayed);
  EXPECT_EQ(hit.history, "0-300:172");
  EXPECT_TRUE(cache.prefix.contains(first.key, 300, ""));
  EXPECT_FALSE(cache.prefix.contains(first.key, 300, "0-300:200"));
}

// Under replay a snapshot from the middle of a prompt serves only far enough before a prompt's end.
TEST(PrefixCache, TheRequestSaysFromWhereItMayGoOn) {
  Cache cache(kSizes);
  Sequence first(cache, counting(512));
  first.publish(128, "lower");
  first.publish(256, "lower");
  first.publish(384, "lower");
  const auto at_least_128_before_the_end = [](int64_t end) {
    return [end](int64_t position, std::string_view) { return position + 128 <= end; };
  };
  EXPECT_EQ(find(cache, counting(512), at_least_128_before_the_end(512)).position, 384);
  EXPECT_EQ(find(cache, counting(500), at_least_128_before_the_end(500)).position, 256);
}

TEST(PrefixCache, PublishingTwiceKeepsOneSnapshot) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  EXPECT_NE(first.publish(), -1);
  EXPECT_TRUE(cache.prefix.contains(first.key, 300, ""));
  Sequence second(cache, counting(300));  // computed at the same time, in blocks of its own
  EXPECT_EQ(second.publish(), -1);
  EXPECT_EQ(cache.prefix.snapshots(), 1);
  EXPECT_EQ(cache.snapshots.held(), 1);
}

// A hash is only where to look. Two prefixes whose hashes are equal are still two prefixes.
TEST(PrefixCache, EqualHashesOfOtherTokensAreNoHit) {
  Cache cache(kSizes);
  Sequence first(cache, counting(128));
  first.publish();
  // Another content under the very hash: the tokens of a key are changed behind its back.
  PrefixKey forged(cache.hasher);
  forged.append(counting(129));
  const_cast<int32_t&>(forged.tokens()[5]) = 77;
  EXPECT_EQ(cache.prefix.find(forged, 128, accept_any).position, 0);

  BlockTable blocks;
  std::vector<CopyBlock> copies;
  ASSERT_TRUE(blocks.reserve(cache.blocks, 0, 129, copies));
  EXPECT_FALSE(cache.prefix.publish(forged, blocks, 129, "", cache.prefix.take_snapshot()));
  EXPECT_EQ(cache.snapshots.held(), 1);
  EXPECT_EQ(find(cache, counting(200)).position, 128);
}

TEST(PrefixCache, CountsWhatItServed) {
  Cache cache(kSizes);
  Sequence first(cache, counting(300));
  first.publish();
  find(cache, counting(400));
  find(cache, counting(400, 9000));
  const PrefixStats& s = cache.prefix.stats();
  EXPECT_EQ(s.lookups, 2);
  EXPECT_EQ(s.hits, 1);
  EXPECT_EQ(s.hit_tokens, 300);
  EXPECT_EQ(s.looked_up_tokens, 800);
  EXPECT_EQ(s.published, 1);
}

TEST(PrefixCacheDeathTest, PublishingWhatIsNotThereEndsTheProcess) {
  Cache cache(kSizes);
  Sequence first(cache, counting(200));
  EXPECT_DEATH(first.publish(201), "outside its sequence");
  EXPECT_DEATH(cache.prefix.publish(first.key, BlockTable{}, 200, "", cache.prefix.take_snapshot()),
               "without its blocks");
  EXPECT_DEATH(cache.prefix.publish(first.key, first.blocks, 200, "", {}), "without a buffer");
}

}  // namespace
}  // namespace mdi
