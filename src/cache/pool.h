// Fixed numbers of equal things (blocks, slots, snapshot buffers) and the handles through which they are held.
//
// A pool gives out ids 0..size-1 that stand for memory which is allocated once, elsewhere. Whoever holds a thing has a
// Ref; the thing is free again when the last Ref is gone. There is no release by id, so a double free does not compile;
// what the types cannot catch (an empty handle used, a pool that ends before its handles) ends the process at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mdi {

// Prints "cache: what" and ends the process: the bookkeeping is wrong, and going on would mix up sequences.
[[noreturn]] void cache_fault(const char* what);

template <class Tag>
class Ref;

// Not for several threads at once.
template <class Tag>
class Pool {
 public:
  explicit Pool(int32_t size) : holders_(static_cast<size_t>(size < 0 ? 0 : size)), kept_(holders_.size()) {
    free_.reserve(holders_.size());
    for (int32_t id = this->size() - 1; id >= 0; --id) free_.push_back(id);
  }
  ~Pool() {
    if (held() != 0) cache_fault("a pool ends while handles to it are alive");
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return static_cast<int32_t>(holders_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t held() const { return size() - free(); }
  // Held by nobody but through keep(): what a cache can give back when room is needed.
  int32_t idle() const { return idle_; }

  // An empty Ref when none is free.
  Ref<Tag> take() {
    if (free_.empty()) return {};
    const int32_t id = free_.back();
    free_.pop_back();
    return Ref<Tag>(this, id, false);
  }

 private:
  friend class Ref<Tag>;
  bool is_idle(size_t i) const { return kept_[i] > 0 && kept_[i] == holders_[i]; }
  void change(int32_t id, bool kept, int32_t by) {
    const auto i = static_cast<size_t>(id);
    const bool before = is_idle(i);
    holders_[i] += by;
    if (kept) kept_[i] += by;
    idle_ += static_cast<int32_t>(is_idle(i)) - static_cast<int32_t>(before);
    if (holders_[i] == 0) free_.push_back(id);
  }

  std::vector<int32_t> holders_, kept_;  // Refs to each id; those of them made by keep()
  std::vector<int32_t> free_;
  int32_t idle_ = 0;
};

// One holder's claim on one thing. Moves, does not copy.
template <class Tag>
class Ref {
 public:
  Ref() = default;
  ~Ref() { reset(); }
  Ref(Ref&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, -1)), kept_(other.kept_) {}
  Ref& operator=(Ref&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      id_ = std::exchange(other.id_, -1);
      kept_ = other.kept_;
    }
    return *this;
  }

  explicit operator bool() const { return pool_ != nullptr; }
  int32_t id() const { return checked().id_; }
  int32_t holders() const { return checked().pool_->holders_[static_cast<size_t>(id_)]; }

  // Another holder of the same thing.
  Ref share() const requires(Tag::kShareable) { return Ref(checked().pool_, id_, false); }
  // Another holder that does not use the thing but keeps it for whoever comes next; see Pool::idle.
  Ref keep() const requires(Tag::kShareable) { return Ref(checked().pool_, id_, true); }

  void reset() {
    if (pool_ == nullptr) return;
    Pool<Tag>* pool = std::exchange(pool_, nullptr);
    pool->change(std::exchange(id_, -1), kept_, -1);
  }

 private:
  friend class Pool<Tag>;
  Ref(Pool<Tag>* pool, int32_t id, bool kept) : pool_(pool), id_(id), kept_(kept) { pool->change(id, kept, +1); }
  const Ref& checked() const {
    if (pool_ == nullptr) cache_fault("an empty handle is used");
    return *this;
  }

  Pool<Tag>* pool_ = nullptr;
  int32_t id_ = -1;
  bool kept_ = false;
};

// Compressed rows and index keys of kCacheBlockTokens tokens, of every KV source.
struct BlockTag {
  static constexpr bool kShareable = true;
};
// A sequence's window rings, pending rows and engram history on the device: one sequence's alone.
struct SlotTag {
  static constexpr bool kShareable = false;
};
// A host copy of a slot.
struct SnapshotTag {
  static constexpr bool kShareable = true;
};
using BlockPool = Pool<BlockTag>;
using BlockRef = Ref<BlockTag>;
using SlotPool = Pool<SlotTag>;
using SlotRef = Ref<SlotTag>;
using SnapshotPool = Pool<SnapshotTag>;
using SnapshotRef = Ref<SnapshotTag>;

}  // namespace mdi
