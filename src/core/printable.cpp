#include "core/printable.h"

#include <cstdint>

namespace mdi {
namespace {

// Bytes of the printable UTF-8 character at the start of `text`; 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  uint32_t code = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool control = code < 0xA0 || code == 0x2028 || code == 0x2029;
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kSmallest[length] || code > 0x10FFFF || control || surrogate ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (at >= limit) return out + "...";
    const size_t length = character_length(text.substr(at));
    if (length == 0) out += '?';
    out.append(text.substr(at, length));
    at += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace mdi
