// What a key covers: token ids, image bytes, salt, in order.
#include "cache/prefix_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "core/error.h"

namespace mdi {
namespace {

std::vector<int32_t> counting(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

PrefixHasher::Key fixed_key(uint8_t value) {
  PrefixHasher::Key key;
  key.fill(std::byte{value});
  return key;
}

std::vector<BlockHash> chain_of(const PrefixHasher& hasher, const std::vector<int32_t>& tokens,
                                const std::string& salt = {}, const std::vector<ImagePart>& images = {}) {
  PrefixKey key(hasher, salt);
  for (const ImagePart& image : images) key.add_image(image);
  key.append(tokens);
  return {key.chain().begin(), key.chain().end()};
}

TEST(PrefixKey, AHashForEachFullBlock) {
  const PrefixHasher hasher(fixed_key(1));
  EXPECT_EQ(chain_of(hasher, counting(127)).size(), 0u);
  EXPECT_EQ(chain_of(hasher, counting(128)).size(), 1u);
  EXPECT_EQ(chain_of(hasher, counting(300)).size(), 2u);
}

TEST(PrefixKey, AppendingInPiecesIsAppendingAtOnce) {
  const PrefixHasher hasher(fixed_key(1));
  const auto tokens = counting(1000);
  const auto whole = chain_of(hasher, tokens);
  for (size_t piece : {1u, 7u, 127u, 128u, 129u, 500u}) {
    PrefixKey key(hasher);
    for (size_t at = 0; at < tokens.size(); at += piece) {
      key.append(std::span(tokens).subspan(at, std::min(piece, tokens.size() - at)));
    }
    EXPECT_EQ(std::vector(key.chain().begin(), key.chain().end()), whole) << piece;
    EXPECT_EQ(std::vector(key.tokens().begin(), key.tokens().end()), tokens);
  }
}

TEST(PrefixKey, AnyTokenChangesItsBlockAndAllBehindIt) {
  const PrefixHasher hasher(fixed_key(1));
  const auto tokens = counting(512);
  const auto chain = chain_of(hasher, tokens);
  for (size_t at : {0u, 127u, 128u, 200u, 511u}) {
    auto other = tokens;
    other[at] += 1000;
    const auto changed = chain_of(hasher, other);
    for (size_t block = 0; block < 4; ++block) {
      EXPECT_EQ(changed[block] == chain[block], block < at / 128) << at << " block " << block;
    }
  }
}

// The keys of a prefix are not those of the same tokens elsewhere.
TEST(PrefixKey, EqualBlocksAtOtherPlacesDiffer) {
  const PrefixHasher hasher(fixed_key(1));
  const std::vector<int32_t> same(384, 5);
  const auto chain = chain_of(hasher, same);
  EXPECT_FALSE(chain[0] == chain[1]);
  EXPECT_FALSE(chain[1] == chain[2]);
}

TEST(PrefixKey, SaltAndProcessKeyCount) {
  const PrefixHasher hasher(fixed_key(1));
  const auto tokens = counting(128);
  EXPECT_FALSE(chain_of(hasher, tokens)[0] == chain_of(hasher, tokens, "tenant")[0]);
  EXPECT_FALSE(chain_of(hasher, tokens, "tenant")[0] == chain_of(hasher, tokens, "tenant2")[0]);
  EXPECT_FALSE(chain_of(hasher, tokens)[0] == chain_of(PrefixHasher(fixed_key(2)), tokens)[0]);
  EXPECT_FALSE(chain_of(PrefixHasher(), tokens)[0] == chain_of(PrefixHasher(), tokens)[0]);  // random keys
}

TEST(PrefixKey, ImagesCountWithTheirBytesAndTheirPlace) {
  const PrefixHasher hasher(fixed_key(1));
  const std::vector<int32_t> tokens(384, 9);  // placeholders have one id
  const std::vector<std::byte> bytes(1000, std::byte{7});
  auto other_bytes = bytes;
  other_bytes[999] = std::byte{8};
  const ImagePart image{.start = 100, .count = 200, .digest = hasher.digest(bytes)};
  const auto chain = chain_of(hasher, tokens, {}, {image});
  const auto expect_differs = [&](const std::vector<ImagePart>& images, const char* what) {
    const auto changed = chain_of(hasher, tokens, {}, images);
    EXPECT_FALSE(changed[0] == chain[0]) << what;
    EXPECT_FALSE(changed[1] == chain[1]) << what;
    EXPECT_FALSE(changed[2] == chain[2]) << what;
  };
  expect_differs({}, "none");
  expect_differs({{.start = 100, .count = 200, .digest = hasher.digest(other_bytes)}}, "one byte");
  expect_differs({{.start = 101, .count = 200, .digest = image.digest}}, "moved by one");
  expect_differs({{.start = 100, .count = 201, .digest = image.digest}}, "longer by one");
  expect_differs(
      {{.start = 100, .count = 100, .digest = image.digest}, {.start = 200, .count = 100, .digest = image.digest}},
      "two for one");
  EXPECT_EQ(chain_of(hasher, tokens, {}, {image}), chain);
  EXPECT_NE(hasher.digest(bytes), hasher.digest(std::span(bytes).first(999)));
}

TEST(PrefixKey, PartsOfImagesInARange) {
  const PrefixHasher hasher(fixed_key(1));
  PrefixKey key(hasher);
  key.add_image({.start = 10, .count = 20, .digest = {}});
  key.add_image({.start = 30, .count = 5, .digest = {}});
  EXPECT_EQ(key.images_in(0, 10).size(), 0u);
  EXPECT_EQ(key.images_in(0, 11).size(), 1u);
  EXPECT_EQ(key.images_in(29, 31).size(), 2u);
  EXPECT_EQ(key.images_in(29, 31)[0].start, -19);
  EXPECT_EQ(key.images_in(35, 100).size(), 0u);
}

TEST(PrefixKey, RefusesImagesThatComeTooLateOrOverlap) {
  const PrefixHasher hasher(fixed_key(1));
  PrefixKey key(hasher);
  key.append(counting(10));
  EXPECT_THROW(key.add_image({.start = 9, .count = 4, .digest = {}}), Error);
  EXPECT_THROW(key.add_image({.start = 10, .count = 0, .digest = {}}), Error);
  key.add_image({.start = 10, .count = 4, .digest = {}});
  EXPECT_THROW(key.add_image({.start = 13, .count = 4, .digest = {}}), Error);
  key.add_image({.start = 14, .count = 4, .digest = {}});
}

}  // namespace
}  // namespace mdi
