#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <queue>

#include "core/error.h"

namespace mdi {
namespace {

// Up to here a scan over all pairs beats a heap (measured on English, Chinese and code; the two meet near 100 bytes).
constexpr size_t kShort = 96;
// From here on a list per rank beats a heap, whose cost per merge grows with the length.
constexpr size_t kLong = 16384;

constexpr uint32_t kNone = PairTable::kNone;
constexpr uint32_t kEnd = UINT32_MAX;

uint32_t hash_bytes(std::string_view bytes) {
  uint64_t h = bytes.size() * 0x9E3779B97F4A7C15u;
  const char* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = (h ^ word) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  uint64_t tail = 0;
  for (size_t i = 0; i < n; ++i) tail |= static_cast<uint64_t>(static_cast<unsigned char>(p[i])) << (8 * i);
  h = (h ^ tail) * 0xFF51AFD7ED558CCDu;
  return static_cast<uint32_t>(h >> 32);
}

// The symbols of a piece as a doubly linked list over positions; a joined symbol lives at its left part's position.
struct Chain {
  struct Node {
    int32_t id;
    uint32_t prev, next;
  };
  std::vector<Node> nodes;

  Chain(std::string_view piece, const std::array<int32_t, 256>& byte_ids) : nodes(piece.size()) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const auto at = static_cast<uint32_t>(i);
      nodes[i] = {byte_ids[static_cast<unsigned char>(piece[i])], at == 0 ? kEnd : at - 1,
                  i + 1 == piece.size() ? kEnd : at + 1};
    }
  }
  void join(uint32_t at, int32_t id) {
    const uint32_t gone = nodes[at].next;
    nodes[at].id = id;
    nodes[at].next = nodes[gone].next;
    if (nodes[at].next != kEnd) nodes[nodes[at].next].prev = at;
    nodes[gone].id = -1;
  }
  void append_to(std::vector<int32_t>& ids) const {
    for (uint32_t at = 0; at != kEnd; at = nodes[at].next) ids.push_back(nodes[at].id);
  }
};

}  // namespace

PairTable::PairTable(size_t pairs) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * pairs, 2));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

bool PairTable::insert(int32_t left, int32_t right, uint32_t rank) {
  size_t at = slot(key(left, right));
  for (; slots_[at].key != kEmpty; at = (at + 1) & mask_) {
    if (slots_[at].key == key(left, right)) return false;
  }
  slots_[at] = {key(left, right), rank};
  return true;
}

WordTable::WordTable(size_t words) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * words, 2));
  slots_.resize(size);
  mask_ = size - 1;
}

bool WordTable::insert(std::string_view bytes, int32_t id) {
  const uint32_t hash = hash_bytes(bytes);
  size_t at = hash & mask_;
  for (; slots_[at].id >= 0; at = (at + 1) & mask_) {
    if (slots_[at].hash == hash && std::string_view(slots_[at].data, slots_[at].size) == bytes) return false;
  }
  slots_[at] = {bytes.data(), static_cast<uint32_t>(bytes.size()), id, hash};
  return true;
}

int32_t WordTable::find(std::string_view bytes) const {
  const uint32_t hash = hash_bytes(bytes);
  for (size_t at = hash & mask_; slots_[at].id >= 0; at = (at + 1) & mask_) {
    if (slots_[at].hash == hash && std::string_view(slots_[at].data, slots_[at].size) == bytes) return slots_[at].id;
  }
  return -1;
}

Bpe::Bpe(const WordTable& words, size_t ids, std::vector<Merge> merges, std::string_view where)
    : words_(words),
      merges_(std::move(merges)),
      pairs_(merges_.size()),
      whole_(std::make_unique<std::atomic<uint8_t>[]>(ids)) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[static_cast<size_t>(byte)] = words_.find({&c, 1});
    if (byte_ids_[static_cast<size_t>(byte)] < 0) {
      throw Error(where, "expected a token for every single byte, found none for byte " + std::to_string(byte));
    }
  }
  std::vector<uint32_t> last_made(ids, 0);  // 1 + the last rank that makes the token
  for (size_t r = 0; r < merges_.size(); ++r) {
    last_made[static_cast<size_t>(merges_[r].joined)] = static_cast<uint32_t>(r) + 1;
  }
  for (size_t r = 0; r < merges_.size(); ++r) {
    const Merge& m = merges_[r];
    if (!pairs_.insert(m.left, m.right, static_cast<uint32_t>(r))) {
      throw Error(where, "merge " + std::to_string(r) + " repeats the pair of an earlier one");
    }
    ascending_ &= std::max(last_made[static_cast<size_t>(m.left)], last_made[static_cast<size_t>(m.right)]) <= r;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(piece.front())]);
    return;
  }
  const int32_t id = words_.find(piece);
  if (id < 0) return merge(piece, ids);
  std::atomic<uint8_t>& known = whole_[static_cast<size_t>(id)];
  const uint8_t state = known.load(std::memory_order_relaxed);
  if (state == kWhole) {
    ids.push_back(id);
    return;
  }
  const size_t before = ids.size();
  merge(piece, ids);
  if (state == kUnknown) {
    known.store(ids.size() == before + 1 && ids.back() == id ? kWhole : kSplit, std::memory_order_relaxed);
  }
}

void Bpe::merge(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShort) return merge_short(piece, ids);
  if (piece.size() >= kLong && ascending_) return merge_by_rank(piece, ids);
  merge_by_heap(piece, ids);
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbol[kShort];
  uint32_t rank[kShort];  // rank[i]: of the pair (i, i + 1)
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) symbol[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) rank[i] = pairs_.rank(symbol[i], symbol[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNone) break;
    symbol[best] = merges_[rank[best]].joined;
    std::copy(symbol + best + 2, symbol + n, symbol + best + 1);
    if (best + 2 < n) std::copy(rank + best + 2, rank + n - 1, rank + best + 1);
    --n;
    if (best + 1 < n) rank[best] = pairs_.rank(symbol[best], symbol[best + 1]);
    if (best > 0) rank[best - 1] = pairs_.rank(symbol[best - 1], symbol[best]);
  }
  ids.insert(ids.end(), symbol, symbol + n);
}

void Bpe::merge_by_heap(std::string_view piece, std::vector<int32_t>& ids) const {
  Chain chain(piece, byte_ids_);
  auto& nodes = chain.nodes;
  // An entry is rank << 32 | position. It is stale when the pair at the position is no longer that rank's pair.
  std::vector<uint64_t> start;
  start.reserve(piece.size());
  const auto entry = [&](uint32_t at) -> uint64_t {
    const uint32_t next = nodes[at].next;
    const uint32_t rank = next == kEnd ? kNone : pairs_.rank(nodes[at].id, nodes[next].id);
    return static_cast<uint64_t>(rank) << 32 | at;
  };
  for (uint32_t at = 0; at < piece.size(); ++at) {
    if (const uint64_t e = entry(at); e >> 32 != kNone) start.push_back(e);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(), std::move(start));
  while (!queue.empty()) {
    const auto rank = static_cast<uint32_t>(queue.top() >> 32);
    const auto at = static_cast<uint32_t>(queue.top());
    queue.pop();
    const Merge& m = merges_[rank];
    const uint32_t next = nodes[at].next;
    if (nodes[at].id != m.left || next == kEnd || nodes[next].id != m.right) continue;
    chain.join(at, m.joined);
    if (const uint64_t e = entry(at); e >> 32 != kNone) queue.push(e);
    if (nodes[at].prev == kEnd) continue;
    if (const uint64_t e = entry(nodes[at].prev); e >> 32 != kNone) queue.push(e);
  }
  chain.append_to(ids);
}

// One ascending pass over the ranks with a list of positions for each. Joining by rank r makes pairs of higher ranks
// only (ascending_), so a list is complete when its turn comes. Equal pairs overlap only where both parts are the same
// token; only there does the order of the positions matter.
void Bpe::merge_by_rank(std::string_view piece, std::vector<int32_t>& ids) const {
  Chain chain(piece, byte_ids_);
  auto& nodes = chain.nodes;
  std::vector<std::vector<uint32_t>> places(merges_.size());
  const auto note = [&](uint32_t at) {
    const uint32_t next = nodes[at].next;
    if (next == kEnd) return;
    if (const uint32_t rank = pairs_.rank(nodes[at].id, nodes[next].id); rank != kNone) places[rank].push_back(at);
  };
  for (uint32_t at = 0; at < piece.size(); ++at) note(at);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    std::vector<uint32_t> list = std::move(places[rank]);
    const Merge& m = merges_[rank];
    if (m.left == m.right && !std::is_sorted(list.begin(), list.end())) std::sort(list.begin(), list.end());
    for (const uint32_t at : list) {
      const uint32_t next = nodes[at].next;
      if (nodes[at].id != m.left || next == kEnd || nodes[next].id != m.right) continue;
      chain.join(at, m.joined);
      note(at);
      if (nodes[at].prev != kEnd) note(nodes[at].prev);
    }
  }
  chain.append_to(ids);
}

}  // namespace mdi
