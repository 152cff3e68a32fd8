#include "text/chat_replay.h"

#include "core/error.h"
#include "text/reply_machine.h"

namespace mdi {
namespace {

// Equal arguments in equal spelling, whatever the client's JSON library made of them; what cannot be read stays.
std::string canonical(const std::string& arguments) {
  if (arguments.empty()) return "{}";
  try {
    return python_json(parse_ordered_json(arguments, "arguments", {size_t{64} << 20, 64}));
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

std::string with_reasoning(std::string key, std::string_view reasoning) {
  key += '|';
  append_part(reasoning, key);
  return key;
}

}  // namespace

void ReplayMemory::remember(const ChatReply& reply) {
  Entry entry;
  entry.answer = answer_key(reply.content, reply.tool_calls);
  entry.whole = with_reasoning(entry.answer, reply.reasoning);
  entry.turn = std::make_shared<const GeneratedTurn>(GeneratedTurn{reply.reasoning_ids, reply.rest_ids});
  // Keys are held here and in the two indices.
  entry.bytes = 2 * (entry.answer.size() + entry.whole.size()) + 256 +
                sizeof(int32_t) * (reply.reasoning_ids.size() + reply.rest_ids.size());
  const std::lock_guard lock(mutex_);
  if (entry.bytes > max_bytes_) return;
  if (const auto same = by_whole_.find(entry.whole); same != by_whole_.end()) erase(same->second);
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  // The tokens of a clipped turn say more than its text does; only the whole of it is distinctive enough to bring them
  // back.
  if (!reply.clipped) by_answer_[entries_.front().answer] = entries_.begin();
  by_whole_[entries_.front().whole] = entries_.begin();
  while (bytes_ > max_bytes_) erase(std::prev(entries_.end()));
}

void ReplayMemory::erase(Entries::iterator entry) const {
  const auto forget = [&](Index& index, const std::string& key) {
    const auto found = index.find(key);
    if (found != index.end() && found->second == entry) index.erase(found);
  };
  forget(by_answer_, entry->answer);
  forget(by_whole_, entry->whole);
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

std::shared_ptr<const GeneratedTurn> ReplayMemory::find(const ChatMessage& message, bool match_reasoning) const {
  std::string content;
  for (const ContentPart& part : message.content) {
    if (part.kind != ContentPart::Kind::kText || message.content.size() > 1) return nullptr;
    content = part.text;
  }
  std::string key = answer_key(content, message.tool_calls);
  if (match_reasoning) key = with_reasoning(std::move(key), message.reasoning);
  const std::lock_guard lock(mutex_);
  const Index& index = match_reasoning ? by_whole_ : by_answer_;
  const auto found = index.find(key);
  if (found == index.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->turn;
}

size_t ReplayMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace mdi
