// A million random operations on small pools, against a simulation of the memory that the ids stand for.
//
// Each row of each simulated block, each slot and each snapshot buffer holds a number that stands for the whole prefix
// that it was computed from. So a row that a stranger overwrote, a copy that came too late, a snapshot whose buffer was
// given away or a prefix of another tenant shows as a wrong number.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "../pace.h"
#include "cache/cache.h"

namespace mdi {
namespace {

constexpr CacheSizes kSizes{.blocks = 26, .slots = 6, .snapshots = 5};
constexpr int64_t kLongest = 5 * kCacheBlockTokens;

struct Memory {
  std::vector<std::array<uint64_t, kCacheBlockTokens>> blocks{static_cast<size_t>(kSizes.blocks)};
  std::vector<uint64_t> slots = std::vector<uint64_t>(static_cast<size_t>(kSizes.slots));
  std::vector<uint64_t> snapshots = std::vector<uint64_t>(static_cast<size_t>(kSizes.snapshots));
};

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
  x ^= x >> 29;
  return x * 0x94D049BB133111EBu + a;
}

struct Sequence {
  PrefixKey key;
  BlockTable blocks;
  SlotRef slot;
  std::vector<uint64_t> prefix;  // [length] the number of the prefix that ends with each token
  uint64_t start;                // that of no tokens: differs by salt
  std::string history;
  SnapshotRef restoring;         // held for a while, as an engine does
  std::vector<int32_t> waiting;  // of the prompt, not yet run

  int64_t length() const { return key.length(); }
  uint64_t state() const { return prefix.empty() ? start : prefix.back(); }
};

// What requests say: few salts, few texts that part at few places, images at one of them.
class Requests {
 public:
  explicit Requests(std::mt19937& random) : random_(random) {}
  int32_t below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(random_); }

  std::string salt() { return below(4) == 0 ? "tenant" : ""; }
  std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    const int pieces = 1 + below(4);
    for (int i = 0; i < pieces; ++i) {
      const int32_t length = std::array{31, 97, 128, 160}[static_cast<size_t>(below(4))];
      const int32_t kind = below(2);
      for (int32_t t = 0; t < length; ++t) tokens.push_back(kind * 1000 + t % 7);
    }
    tokens.resize(std::min<size_t>(tokens.size(), kLongest - 100));
    return tokens;
  }
  std::vector<int32_t> chunk(const std::vector<int32_t>& waiting) {
    const auto count =
        std::min(waiting.size(), std::array<size_t, 4>{31, 128, 256, 640}[static_cast<size_t>(below(4))]);
    return {waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(count)};
  }
  std::vector<int32_t> answer(int64_t length) {
    std::vector<int32_t> tokens(static_cast<size_t>(1 + below(below(3) == 0 ? 90 : 4)));
    for (int32_t& token : tokens) token = below(3);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(kLongest - length)));
    return tokens;
  }

 private:
  std::mt19937& random_;
};

class Engine {
 public:
  explicit Engine(uint32_t seed) : random_(seed), requests_(random_) {}

  void operate() {
    const int32_t what = requests_.below(100);
    if (what < 12) return admit();
    if (what < 55) return step();
    if (what < 72) return snapshot();
    if (what < 80) return fork();
    if (what < 92) return cancel();
    if (what < 97) return let_go();
    if (what < 99) return make_room();
    if (requests_.below(20) == 0) cache_.prefix.clear();
  }

  // Free and held make all; what is held is a sequence's or idle in the cache; held memory is what it should be.
  void check() {
    std::set<int32_t> blocks, slots;
    for (const auto& s : sequences_) {
      for (const int32_t id : s->blocks.ids()) blocks.insert(id);
      if (!slots.insert(s->slot.id()).second) ADD_FAILURE() << "a slot of two sequences";
    }
    ASSERT_EQ(cache_.blocks.free() + cache_.blocks.held(), kSizes.blocks);
    ASSERT_EQ(cache_.blocks.held(), static_cast<int32_t>(blocks.size()) + cache_.blocks.idle());
    ASSERT_EQ(cache_.prefix.available(), kSizes.blocks - static_cast<int64_t>(blocks.size()));
    ASSERT_EQ(cache_.slots.held(), static_cast<int32_t>(slots.size()));
    ASSERT_EQ(cache_.snapshots.held(), static_cast<int32_t>(cache_.prefix.snapshots()));
  }

  void check_memory() {
    for (const auto& s : sequences_) check_memory(*s);
  }

  // Nobody is left: all is free or idle, and then all is free.
  void finish() {
    check_memory();
    sequences_.clear();
    ASSERT_EQ(cache_.blocks.held(), cache_.blocks.idle());
    ASSERT_EQ(cache_.slots.free(), kSizes.slots);
    ASSERT_TRUE(cache_.prefix.make_room(kSizes.blocks));
    ASSERT_EQ(cache_.blocks.free(), kSizes.blocks);
    cache_.prefix.clear();
    ASSERT_EQ(cache_.snapshots.free(), kSizes.snapshots);
    ASSERT_EQ(cache_.prefix.nodes(), 0);
  }

  const PrefixStats& stats() const { return cache_.prefix.stats(); }
  int64_t copies() const { return copies_; }
  int64_t refused() const { return refused_; }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;
  Sequence* any() {
    if (sequences_.empty()) return nullptr;
    return sequences_[static_cast<size_t>(requests_.below(static_cast<int32_t>(sequences_.size())))].get();
  }

  static void add_tokens(Sequence& s, std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) s.prefix.push_back(mix(s.state(), static_cast<uint64_t>(token)));
    s.key.append(tokens);
  }

  void check_memory(const Sequence& s) {
    ASSERT_EQ(memory_.slots[static_cast<size_t>(s.slot.id())], s.state());
    for (int64_t i = 0; i < s.length(); ++i) {
      const auto block = static_cast<size_t>(s.blocks.ids()[static_cast<size_t>(i / kCacheBlockTokens)]);
      ASSERT_EQ(memory_.blocks[block][static_cast<size_t>(i % kCacheBlockTokens)], s.prefix[static_cast<size_t>(i)])
          << "token " << i << " of " << s.length();
    }
  }

  void admit() {
    SlotRef slot = cache_.slots.take();
    if (!slot) return;
    const std::string salt = requests_.salt();
    const std::vector<int32_t> prompt = requests_.prompt();
    PrefixKey whole(cache_.hasher, salt);
    whole.append(prompt);
    const bool replayed = requests_.below(3) == 0;
    PrefixHit hit = cache_.prefix.find(whole, whole.length() - 1, [replayed](int64_t, std::string_view history) {
      return replayed || history.empty();
    });
    auto s = std::make_unique<Sequence>(Sequence{.key = PrefixKey(cache_.hasher, salt),
                                                 .blocks = std::move(hit.blocks),
                                                 .slot = std::move(slot),
                                                 .prefix = {},
                                                 .start = salt.empty() ? 1u : 2u,
                                                 .history = hit.history,
                                                 .restoring = {},
                                                 .waiting = {}});
    ASSERT_LT(hit.position, whole.length());
    ASSERT_EQ(s->blocks.size(), (hit.position + kCacheBlockTokens - 1) / kCacheBlockTokens);
    add_tokens(*s, std::span(prompt).first(static_cast<size_t>(hit.position)));
    uint64_t& state = memory_.slots[static_cast<size_t>(s->slot.id())];
    state = hit.position > 0 ? memory_.snapshots[static_cast<size_t>(hit.snapshot.id())] : s->start;
    s->restoring = std::move(hit.snapshot);
    check_memory(*s);
    s->waiting.assign(prompt.begin() + hit.position, prompt.end());
    sequences_.push_back(std::move(s));
  }

  // Several sequences get room, then the copies run, then all rows are written, then some are accepted.
  void step() {
    struct Part {
      Sequence* sequence;
      std::vector<int32_t> tokens;
    };
    std::vector<Part> parts;
    std::vector<CopyBlock> copies;
    std::shuffle(sequences_.begin(), sequences_.end(), random_);
    const auto count = std::min(sequences_.size(), static_cast<size_t>(1 + requests_.below(4)));
    for (size_t i = 0; i < count; ++i) {
      Sequence& s = *sequences_[i];
      std::vector<int32_t> tokens = s.waiting.empty() ? requests_.answer(s.length()) : requests_.chunk(s.waiting);
      if (tokens.empty()) continue;
      const int64_t needed = s.blocks.needed(s.length(), static_cast<int64_t>(tokens.size()));
      const int64_t available = cache_.prefix.available();
      const bool room = cache_.prefix.make_room(needed);
      if (cache_.snapshots.held() == 0 || !anything_restoring()) {
        ASSERT_EQ(room, available >= needed);
      }
      if (!s.blocks.reserve(cache_.blocks, s.length(), static_cast<int64_t>(tokens.size()), copies)) {
        ASSERT_FALSE(room);
        ++refused_;
        continue;
      }
      parts.push_back({&s, std::move(tokens)});
    }
    for (const CopyBlock& copy : copies) {
      memory_.blocks[static_cast<size_t>(copy.to)] = memory_.blocks[static_cast<size_t>(copy.from)];
    }
    copies_ += static_cast<int64_t>(copies.size());
    for (Part& part : parts) {
      Sequence& s = *part.sequence;
      const auto written = static_cast<int64_t>(part.tokens.size());
      const int64_t start = s.length();
      // A prompt's chunk is accepted whole; of a drafted block, any part.
      const bool drafted = s.waiting.empty() && requests_.below(3) == 0;
      const int64_t accepted = drafted ? requests_.below(static_cast<int32_t>(written) + 1) : written;
      if (!s.waiting.empty()) s.waiting.erase(s.waiting.begin(), s.waiting.begin() + written);
      add_tokens(s, std::span(part.tokens).first(static_cast<size_t>(accepted)));
      for (int64_t i = 0; i < written; ++i) {
        const int64_t at = start + i;
        const BlockRef& block = s.blocks.block(at / kCacheBlockTokens);
        ASSERT_EQ(block.holders(), 1) << "a block that others hold is written";
        memory_.blocks[static_cast<size_t>(block.id())][static_cast<size_t>(at % kCacheBlockTokens)] =
            i < accepted ? s.prefix[static_cast<size_t>(at)] : random_();
      }
      memory_.slots[static_cast<size_t>(s.slot.id())] = s.state();
      if (requests_.below(2) == 0) s.blocks.truncate(s.length());
    }
  }

  bool anything_restoring() const {
    return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& s) { return bool{s->restoring}; });
  }

  void snapshot() {
    Sequence* s = any();
    if (s == nullptr || s->length() == 0) return;
    if (s->history.empty() && requests_.below(10) == 0) s->history = "replayed";
    const bool known = cache_.prefix.contains(s->key, s->length(), s->history);
    SnapshotRef buffer = cache_.prefix.take_snapshot();
    if (!buffer) {
      ++refused_;
      return;
    }
    memory_.snapshots[static_cast<size_t>(buffer.id())] = s->state();
    if (requests_.below(10) == 0) return;  // cancelled between the copy and its publication
    const bool kept = cache_.prefix.publish(s->key, s->blocks, s->length(), s->history, std::move(buffer));
    // Taking the buffer may have evicted the very snapshot that was known.
    if (!known) {
      ASSERT_TRUE(kept);
    }
    ASSERT_TRUE(cache_.prefix.contains(s->key, s->length(), s->history));
  }

  void fork() {
    const Sequence* s = any();
    SlotRef slot = cache_.slots.take();
    if (s == nullptr || !slot) return;
    memory_.slots[static_cast<size_t>(slot.id())] = memory_.slots[static_cast<size_t>(s->slot.id())];
    sequences_.push_back(std::make_unique<Sequence>(Sequence{.key = s->key,
                                                             .blocks = s->blocks.fork(),
                                                             .slot = std::move(slot),
                                                             .prefix = s->prefix,
                                                             .start = s->start,
                                                             .history = s->history,
                                                             .restoring = {},
                                                             .waiting = s->waiting}));
  }

  void cancel() {
    if (sequences_.empty()) return;
    std::swap(sequences_[static_cast<size_t>(requests_.below(static_cast<int32_t>(sequences_.size())))],
              sequences_.back());
    check_memory(*sequences_.back());
    sequences_.pop_back();
  }

  void let_go() {
    Sequence* s = any();
    if (s != nullptr) s->restoring.reset();
  }

  void make_room() { cache_.prefix.make_room(requests_.below(kSizes.blocks + 1)); }

  std::mt19937 random_;
  Requests requests_;
  Cache cache_{kSizes};
  Memory memory_;
  Sequences sequences_;
  int64_t copies_ = 0, refused_ = 0;
};

TEST(CacheProperty, AMillionRandomOperations) {
  constexpr int kOperations = kPace > 1 ? 100'000 : 1'000'000;
  Engine engine(20251);
  for (int i = 0; i < kOperations; ++i) {
    engine.operate();
    engine.check();
    if (i % 64 == 0) engine.check_memory();
    if (::testing::Test::HasFailure()) FAIL() << "operation " << i;
  }
  // The run went where it should: hits, evictions, copies on write, and pools that were full.
  EXPECT_GT(engine.stats().hits, kOperations / 200);
  EXPECT_GT(engine.stats().evicted, kOperations / 200);
  EXPECT_GT(engine.copies(), kOperations / 200);
  EXPECT_GT(engine.refused(), kOperations / 2000);
  engine.finish();
}

TEST(CacheProperty, OtherSeeds) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Engine engine(seed);
    for (int i = 0; i < 5000; ++i) {
      engine.operate();
      engine.check();
      if (i % 16 == 0) engine.check_memory();
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", operation " << i;
    }
    engine.finish();
  }
}

}  // namespace
}  // namespace mdi
