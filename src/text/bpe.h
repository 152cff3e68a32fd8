// Byte-pair encoding of one piece of text: start from single bytes, then always join the pair of neighbours whose merge
// has the lowest rank, the leftmost of equals first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mdi {

// Open-addressing table from a pair of token ids to the rank of its merge.
class PairTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit PairTable(size_t pairs = 0);
  // False when the pair is there already.
  bool insert(int32_t left, int32_t right, uint32_t rank);
  uint32_t rank(int32_t left, int32_t right) const {
    for (size_t at = slot(key(left, right));; at = (at + 1) & mask_) {
      if (slots_[at].key == key(left, right)) return slots_[at].rank;
      if (slots_[at].key == kEmpty) return kNone;
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    uint32_t rank = kNone;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t key) const { return static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> shift_); }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 63;
};

// Open-addressing table from a token's bytes to its id. It keeps views: the bytes must outlive it.
class WordTable {
 public:
  explicit WordTable(size_t words = 0);
  // False when the word is there already.
  bool insert(std::string_view bytes, int32_t id);
  int32_t find(std::string_view bytes) const;  // -1: not there

 private:
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0;
    int32_t id = -1;
    uint32_t hash = 0;
  };
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

struct Merge {
  int32_t left, right, joined;
};

// Immutable after construction, so one model serves many threads.
class Bpe {
 public:
  // `words` holds every token that merging can make, all single bytes among them, with ids below `ids`; it must outlive
  // the model. Merges are in rank order. Throws mdi::Error(where, ...) for a missing byte or an equal pair.
  Bpe(const WordTable& words, size_t ids, std::vector<Merge> merges, std::string_view where);

  // Appends the ids of one piece. Any bytes; fewer than 2^31 of them. The time is linear in the length of a long piece.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_by_heap(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_by_rank(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge(std::string_view piece, std::vector<int32_t>& ids) const;

  const WordTable& words_;
  std::vector<Merge> merges_;
  PairTable pairs_;
  std::array<int32_t, 256> byte_ids_{};
  // A merge's parts are complete before its turn comes: then ranks can be worked off in one ascending pass.
  bool ascending_ = true;
  // What merging makes of a whole word that is a token: itself (kWhole) or something else. Filled in as words are met;
  // threads may race to store the same answer.
  enum : uint8_t { kUnknown, kWhole, kSplit };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace mdi
