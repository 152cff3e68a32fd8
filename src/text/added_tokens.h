// Finds the added tokens (markers) in a text: from the left, the longest at each place.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mdi {

class MarkerTrie {
 public:
  MarkerTrie() : nodes_(1) {}
  // False when the (non-empty) marker is there already.
  bool insert(std::string_view marker, int32_t id);

  struct Match {
    size_t begin, end;  // begin == end == text.size(): none
    int32_t id;
  };
  // The first marker at or after `from`. Time: at most the longest marker's length per byte that can start one.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Node {
    char byte = 0;
    int32_t id = -1;
    uint32_t child = 0, sibling = 0;  // 0: none
  };
  uint32_t child_of(uint32_t node, char byte) const;

  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

}  // namespace mdi
