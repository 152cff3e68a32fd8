#include "text/chat_parser.h"

#include <utility>

#include "text/chat_render.h"

namespace mdi {

ChatParser::ChatParser(const Tokenizer& tokenizer, bool reasoning)
    : tokenizer_(&tokenizer),
      eos_(tokenizer.marker(marker::kEos).value_or(-1)),
      think_end_(tokenizer.marker(marker::kThinkEnd).value_or(-1)),
      dsml_(tokenizer.marker(marker::kDsml).value_or(-1)),
      machine_(reasoning) {}

void ChatParser::mark(char symbol, std::vector<ChatEvent>& events) {
  std::string text;
  stream_.finish(text);
  text += symbol;
  machine_.push(text, events);
}

void ChatParser::push(int32_t id, std::vector<ChatEvent>& events) {
  const std::string_view bytes = tokenizer_->bytes(id);
  if (machine_.done()) return;
  if (id == eos_) return finish(ReplyEnd::kStop, events);
  if (id == think_end_ && machine_.reasoning()) return mark(ReplyMachine::kThinkEnd, events);
  (machine_.reasoning() ? machine_.reply().reasoning_ids : machine_.reply().rest_ids).push_back(id);
  if (id == dsml_) return mark(ReplyMachine::kDsml, events);
  std::string text;
  stream_.push(bytes, text);
  machine_.push(text, events);
}

void ChatParser::finish(ReplyEnd end, std::vector<ChatEvent>& events) {
  std::string tail;
  if (end == ReplyEnd::kStop) stream_.finish(tail);
  if (!machine_.done()) machine_.reply().clipped |= stream_.pending();
  stream_.drop();
  machine_.push(tail, events);
  machine_.finish(end, events);
}

namespace {

struct TextMarker {
  std::string_view text;
  char symbol;  // 0: the end of the answer
};
constexpr TextMarker kTextMarkers[] = {
    {"</think>", ReplyMachine::kThinkEnd},
    {"｜DSML｜", ReplyMachine::kDsml},
    {"<｜end▁of▁sentence｜>", '\0'},
};

// The marker that `rest` starts with; `open` says that rest is only the beginning of one.
const TextMarker* marker_at(std::string_view rest, bool& open) {
  for (const TextMarker& m : kTextMarkers) {
    if (rest.substr(0, m.text.size()) != m.text.substr(0, rest.size())) continue;
    open = rest.size() < m.text.size();
    return &m;
  }
  return nullptr;
}

}  // namespace

void ChatTextParser::push(std::string_view text, std::vector<ChatEvent>& events) {
  if (machine_.done()) return;
  stream_.push(text, held_);
  std::string ready;
  size_t at = 0;
  while (at < held_.size()) {
    bool open = false;
    const TextMarker* found = marker_at(std::string_view(held_).substr(at), open);
    if (found == nullptr) {
      ready += held_[at++];
      continue;
    }
    if (open) break;
    at += found->text.size();
    if (found->symbol == '\0') {
      machine_.push(ready, events);
      return machine_.finish(ReplyEnd::kStop, events);
    }
    ready += found->symbol;
  }
  held_.erase(0, at);
  machine_.push(ready, events);
}

void ChatTextParser::finish(ReplyEnd end, std::vector<ChatEvent>& events) {
  std::string tail;
  if (end == ReplyEnd::kStop) {
    stream_.finish(held_);
    tail = std::exchange(held_, {});
  }
  machine_.push(tail, events);
  machine_.finish(end, events);
}

}  // namespace mdi
