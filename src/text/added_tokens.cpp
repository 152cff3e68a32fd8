#include "text/added_tokens.h"

namespace mdi {

uint32_t MarkerTrie::child_of(uint32_t node, char byte) const {
  uint32_t at = nodes_[node].child;
  while (at != 0 && nodes_[at].byte != byte) at = nodes_[at].sibling;
  return at;
}

bool MarkerTrie::insert(std::string_view marker, int32_t id) {
  starts_[static_cast<unsigned char>(marker.front())] = true;
  uint32_t node = 0;
  for (const char byte : marker) {
    uint32_t next = child_of(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({byte, -1, 0, nodes_[node].child});
      nodes_[node].child = next;
    }
    node = next;
  }
  if (nodes_[node].id >= 0) return false;
  nodes_[node].id = id;
  return true;
}

MarkerTrie::Match MarkerTrie::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match match{begin, begin, -1};
    uint32_t node = 0;
    for (size_t at = begin; at < text.size() && (node = child_of(node, text[at])) != 0; ++at) {
      if (nodes_[node].id >= 0) match = {begin, at + 1, nodes_[node].id};
    }
    if (match.id >= 0) return match;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace mdi
