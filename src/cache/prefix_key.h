// What a prefix is found by: token ids, what images were embedded, and an optional salt (a tenant's, say).
//
// Each full block has a hash of (the hash before it, its tokens, its parts of images): a chain, so that one hash stands
// for everything up to its block. The hash is keyed with random bytes of this process, so nobody outside can make two
// prefixes collide; the prefix cache compares the contents all the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/block_table.h"

namespace mdi {

struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};

using ImageDigest = std::array<std::byte, 32>;

// Positions [start, start + count) are the span of one image. In a chain, all of the span counts, not only what lies in
// the block: a part says which rows of which image a position is embedded as.
struct ImagePart {
  int64_t start = 0, count = 0;
  ImageDigest digest{};  // PrefixHasher::digest of the image's bytes
  bool operator==(const ImagePart&) const = default;
};

class PrefixHasher {
 public:
  using Key = std::array<std::byte, 32>;
  PrefixHasher();  // a random key
  explicit PrefixHasher(const Key& key) : key_(key) {}

  // Safe to call from several threads.
  BlockHash root(std::string_view salt) const;
  // `tokens`: those of one block. `images`: the parts that overlap it, starts relative to the block's first token
  // (below 0 where the span began earlier).
  BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens, std::span<const ImagePart> images) const;
  // Keyed BLAKE2b-256, also for bytes that come in pieces of one image file.
  ImageDigest digest(std::span<const std::byte> bytes) const;

 private:
  Key key_;
};

// The committed tokens of one sequence with their chain. A value: a fork copies it. `hasher` outlives it.
class PrefixKey {
 public:
  explicit PrefixKey(const PrefixHasher& hasher, std::string salt = {});

  // Images in ascending order without overlap, each before the tokens of its span. Throws mdi::Error otherwise.
  void add_image(const ImagePart& image);
  void append(std::span<const int32_t> tokens);

  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const ImagePart> images() const { return images_; }
  const std::string& salt() const { return salt_; }
  const BlockHash& root() const { return root_; }
  std::span<const BlockHash> chain() const { return chain_; }  // [length / kCacheBlockTokens]
  // The parts of images that overlap tokens [begin, end), starts relative to `begin`.
  std::vector<ImagePart> images_in(int64_t begin, int64_t end) const;

 private:
  const PrefixHasher* hasher_;
  std::string salt_;
  BlockHash root_;
  std::vector<int32_t> tokens_;
  std::vector<ImagePart> images_;
  std::vector<BlockHash> chain_;
};

}  // namespace mdi
