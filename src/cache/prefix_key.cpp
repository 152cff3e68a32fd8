#include "cache/prefix_key.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace mdi {

namespace {

// Keyed BLAKE2b over values that are written one after the other; every variable length is written before its bytes.
class Blake {
 public:
  Blake(const PrefixHasher::Key& key, size_t bytes) : bytes_(bytes) {
    crypto_generichash_init(&state_, reinterpret_cast<const unsigned char*>(key.data()), key.size(), bytes);
  }
  void add(const void* data, size_t size) {
    crypto_generichash_update(&state_, static_cast<const unsigned char*>(data), size);
  }
  void add(uint64_t value) { add(&value, sizeof value); }
  void finish(void* out) { crypto_generichash_final(&state_, static_cast<unsigned char*>(out), bytes_); }

 private:
  crypto_generichash_state state_;
  size_t bytes_;
};

// What is hashed differs in kind, so that a root never equals a block.
enum class Kind : uint64_t { kRoot = 1, kBlock = 2, kImage = 3 };

BlockHash finish(Blake& hash) {
  static_assert(sizeof(BlockHash) >= crypto_generichash_BYTES_MIN);
  BlockHash out;
  hash.finish(&out);
  return out;
}

}  // namespace

PrefixHasher::PrefixHasher() {
  if (sodium_init() < 0) throw Error("prefix cache", "libsodium does not start, so there is no random key");
  randombytes_buf(key_.data(), key_.size());
}

BlockHash PrefixHasher::root(std::string_view salt) const {
  Blake hash(key_, sizeof(BlockHash));
  hash.add(static_cast<uint64_t>(Kind::kRoot));
  hash.add(salt.size());
  hash.add(salt.data(), salt.size());
  return finish(hash);
}

BlockHash PrefixHasher::block(const BlockHash& parent, std::span<const int32_t> tokens,
                              std::span<const ImagePart> images) const {
  Blake hash(key_, sizeof(BlockHash));
  hash.add(static_cast<uint64_t>(Kind::kBlock));
  hash.add(parent.low);
  hash.add(parent.high);
  hash.add(tokens.size());
  hash.add(tokens.data(), tokens.size_bytes());
  hash.add(images.size());
  for (const ImagePart& image : images) {
    hash.add(static_cast<uint64_t>(image.start));
    hash.add(static_cast<uint64_t>(image.count));
    hash.add(image.digest.data(), image.digest.size());
  }
  return finish(hash);
}

ImageDigest PrefixHasher::digest(std::span<const std::byte> bytes) const {
  Blake hash(key_, sizeof(ImageDigest));
  hash.add(static_cast<uint64_t>(Kind::kImage));
  hash.add(bytes.data(), bytes.size());
  ImageDigest out;
  hash.finish(out.data());
  return out;
}

PrefixKey::PrefixKey(const PrefixHasher& hasher, std::string salt)
    : hasher_(&hasher), salt_(std::move(salt)), root_(hasher.root(salt_)) {}

void PrefixKey::add_image(const ImagePart& image) {
  const int64_t known = images_.empty() ? 0 : images_.back().start + images_.back().count;
  if (image.count < 1 || image.start < std::max(known, length())) {
    throw Error("prefix key", "an image at " + std::to_string(image.start) + " of " + std::to_string(image.count) +
                                  " tokens: expected at least one, from " + std::to_string(std::max(known, length())) +
                                  " on");
  }
  images_.push_back(image);
}

void PrefixKey::append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (;;) {
    const auto begin = static_cast<int64_t>(chain_.size()) * kCacheBlockTokens;
    if (begin + kCacheBlockTokens > length()) return;
    const BlockHash& parent = chain_.empty() ? root_ : chain_.back();
    const std::span block = std::span(tokens_).subspan(static_cast<size_t>(begin), kCacheBlockTokens);
    chain_.push_back(hasher_->block(parent, block, images_in(begin, begin + kCacheBlockTokens)));
  }
}

std::vector<ImagePart> PrefixKey::images_in(int64_t begin, int64_t end) const {
  std::vector<ImagePart> parts;
  auto at = std::partition_point(images_.begin(), images_.end(),
                                 [begin](const ImagePart& image) { return image.start + image.count <= begin; });
  for (; at != images_.end() && at->start < end; ++at) {
    parts.push_back({.start = at->start - begin, .count = at->count, .digest = at->digest});
  }
  return parts;
}

}  // namespace mdi
