// What was generated, kept by what clients send back of it. Text alone does not say which tokens it was made of: a
// sampled word may be split unlike the tokenizer would, and JSON arguments come back respelled. With the very tokens
// the prompt of the next turn starts with the last turn's prompt and answer, and the prefix cache hits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/chat_message.h"

namespace mdi {

struct ChatReply;

struct GeneratedTurn {
  std::vector<int32_t> reasoning;  // up to </think>, without it
  std::vector<int32_t> rest;       // content and tool calls, without eos
};

// Bounded, least recently used out first; safe to use from several threads.
class ReplayMemory {
 public:
  explicit ReplayMemory(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  void remember(const ChatReply& reply);
  // The turn with the message's content and tool calls; arguments are compared as JSON values. With match_reasoning its
  // reasoning must be the same too. Null when there is none.
  std::shared_ptr<const GeneratedTurn> find(const ChatMessage& message, bool match_reasoning) const;

  size_t bytes() const;

 private:
  struct Entry {
    std::string answer, whole;  // keys: without and with the reasoning
    std::shared_ptr<const GeneratedTurn> turn;
    size_t bytes;
  };
  using Entries = std::list<Entry>;
  using Index = std::unordered_map<std::string, Entries::iterator>;

  void erase(Entries::iterator entry) const;

  size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable Entries entries_;  // most recently used first
  mutable Index by_answer_, by_whole_;
  mutable size_t bytes_ = 0;
};

}  // namespace mdi
