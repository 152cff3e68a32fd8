#include "text/chat_replay.h"

#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "text/reply_machine.h"

namespace mdi {
namespace {

// Equal arguments in equal spelling, whatever the client's JSON library made of them; what cannot be read stays.
std::string canonical(const std::string& arguments) {
  if (arguments.empty()) return "{}";
  try {
    return python_json(*JsonTree(parse_ordered_json(arguments, "arguments", {size_t{64} << 20, 64})));
  } catch (const Error&) {
    return arguments;
  }
}

void append_part(std::string_view text, std::string& key) {
  key += std::to_string(text.size()) + ':';
  key += text;
}

std::string answer_key(std::string_view content, const std::vector<ToolCall>& calls) {
  std::string key;
  append_part(content, key);
  for (const ToolCall& call : calls) {
    append_part(call.name, key);
    append_part(canonical(call.arguments), key);
  }
  return key;
}

std::string place_key(TurnPlace place) {
  std::string key(sizeof place, '\0');
  std::memcpy(key.data(), &place, sizeof place);
  return key;
}

std::string with_reasoning(std::string key, std::string_view reasoning) {
  key += '|';
  append_part(reasoning, key);
  return key;
}

void append_content(const std::vector<ContentPart>& parts, std::string& key) {
  key += std::to_string(parts.size()) + '[';
  for (const ContentPart& part : parts) {
    key += static_cast<char>('a' + static_cast<int>(part.kind));
    // A result's text is its call's id, which a client may make anew.
    if (part.kind != ContentPart::Kind::kToolResult) append_part(part.text, key);
    append_content(part.parts, key);
  }
}

}  // namespace

TurnPlace place_behind(TurnPlace place, const ChatMessage& message) {
  std::string key = place_key(place);
  key += static_cast<char>('a' + static_cast<int>(message.role));
  append_content(message.content, key);
  key += answer_key({}, message.tool_calls);
  for (const std::string& tool : message.tools) append_part(tool, key);
  append_part(message.response_format, key);
  append_part(message.task, key);
  return std::hash<std::string>{}(key);
}

std::string_view ReplayMemory::Entry::key(bool placed, bool whole) const {
  std::string_view part = text;
  if (!whole) part = part.substr(0, sizeof(TurnPlace) + answer_bytes);
  return placed ? part : part.substr(sizeof(TurnPlace));
}

void ReplayMemory::remember(TurnPlace place, const ChatReply& reply) {
  const std::string answer = answer_key(reply.content, reply.tool_calls);
  Entry entry;
  entry.text = with_reasoning(place_key(place) + answer, reply.reasoning);
  entry.answer_bytes = answer.size();
  entry.turn = std::make_shared<const GeneratedTurn>(GeneratedTurn{reply.reasoning_ids, reply.rest_ids, reply.tail});
  entry.bytes = entry.text.size() + reply.tail.size() + 512 +
                sizeof(int32_t) * (reply.reasoning_ids.size() + reply.rest_ids.size());
  const std::lock_guard lock(mutex_);
  if (entry.bytes > max_bytes_) return;
  if (const auto same = index_[1][1].find(entry.text); same != index_[1][1].end()) erase(same->second);
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  const auto newest = entries_.begin();
  for (const bool placed : {false, true}) {
    for (const bool whole : {false, true}) {
      // The tokens of a clipped turn say more than its text does; only its place or the whole of it is distinctive
      // enough to bring them back.
      if (reply.clipped && !placed && !whole) continue;
      Index& index = index_[placed][whole];
      index.erase(newest->key(placed, whole));  // the key's bytes are to be this entry's
      index.emplace(newest->key(placed, whole), newest);
    }
  }
  while (bytes_ > max_bytes_) erase(std::prev(entries_.end()));
}

void ReplayMemory::erase(Entries::iterator entry) const {
  for (const bool placed : {false, true}) {
    for (const bool whole : {false, true}) {
      Index& index = index_[placed][whole];
      const auto found = index.find(entry->key(placed, whole));
      if (found != index.end() && found->second == entry) index.erase(found);
    }
  }
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

std::shared_ptr<const GeneratedTurn> ReplayMemory::find(TurnPlace place, const ChatMessage& message,
                                                        bool match_reasoning) const {
  std::string content;
  for (const ContentPart& part : message.content) {
    if (part.kind != ContentPart::Kind::kText || message.content.size() > 1) return nullptr;
    content = part.text;
  }
  std::string key = place_key(place) + answer_key(content, message.tool_calls);
  if (match_reasoning) key = with_reasoning(std::move(key), message.reasoning);
  const std::lock_guard lock(mutex_);
  for (const bool placed : {true, false}) {
    const Index& index = index_[placed][match_reasoning];
    const auto found = index.find(std::string_view(key).substr(placed ? 0 : sizeof place));
    if (found == index.end()) continue;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->turn;
  }
  return nullptr;
}

size_t ReplayMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace mdi
