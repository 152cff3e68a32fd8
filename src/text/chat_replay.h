// What was generated, kept by what clients send back of it. Text alone does not say which tokens it was made of: a
// sampled word may be split unlike the tokenizer would, and JSON arguments come back respelled. With the very tokens
// the prompt of the next turn starts with the last turn's prompt and answer, and the prefix cache hits.
//
// Equal answers may have been made of different tokens ("Yes." is given often), so a turn is looked for at its place in
// a conversation first: behind the same messages. Only where it is not known there (a client that shortens its history)
// any turn of equal text is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/chat_message.h"

namespace mdi {

struct ChatReply;

struct GeneratedTurn {
  std::vector<int32_t> reasoning;  // up to </think>, without it
  std::vector<int32_t> rest;       // content and tool calls, without eos
  std::string tail;                // ChatReply::tail
};

// Where a turn stands: a hash of the messages before it, without their reasoning, which clients may forget. What two
// places of equal hash would cost is a prefix that is not found, since a turn's text is compared as well.
using TurnPlace = uint64_t;
inline constexpr TurnPlace kFirstPlace = 0;
TurnPlace place_behind(TurnPlace place, const ChatMessage& message);

// Bounded, least recently used out first; safe to use from several threads.
class ReplayMemory {
 public:
  explicit ReplayMemory(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  void remember(TurnPlace place, const ChatReply& reply);
  // The turn with the message's content and tool calls; arguments are compared as JSON values. With match_reasoning its
  // reasoning must be the same too. The one at this place, else the last one anywhere; null when there is none.
  std::shared_ptr<const GeneratedTurn> find(TurnPlace place, const ChatMessage& message, bool match_reasoning) const;

  size_t bytes() const;

 private:
  struct Entry {
    std::string text;  // place, answer, reasoning: every key is a part of it
    size_t answer_bytes;
    std::shared_ptr<const GeneratedTurn> turn;
    size_t bytes;

    std::string_view key(bool placed, bool whole) const;
  };
  using Entries = std::list<Entry>;
  using Index = std::unordered_map<std::string_view, Entries::iterator>;

  void erase(Entries::iterator entry) const;

  size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable Entries entries_;    // most recently used first
  mutable Index index_[2][2];  // by whether the place, and the reasoning, is part of the key
  mutable size_t bytes_ = 0;
};

}  // namespace mdi
