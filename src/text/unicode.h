// Code points: classes as the reference tokenizer's regex engine sees them (Unicode 16), and UTF-8 in and out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mdi {

// One bit per class, so that a regex class is one test against a mask. Classes do not overlap.
enum CharClass : uint8_t {
  kLetter = 1,   // \p{L}
  kMark = 2,     // \p{M}
  kNumber = 4,   // \p{N}
  kPunct = 8,    // \p{P}
  kSymbol = 16,  // \p{S}
  kSpace = 32,   // \s
};

struct CharRange {
  char32_t first, last;  // inclusive
  CharClass bits;
};
extern const CharRange kCharRanges[];  // ascending, generated
extern const size_t kCharRangeCount;

inline constexpr char32_t kCodePoints = 0x110000;

// Class bits of every code point: kCodePoints bytes, built on first use, 0 for controls and unassigned code points.
const uint8_t* char_class_table();

struct Decoded {
  char32_t cp;
  uint32_t size;  // bytes
};

// The code point at text[at]. The text must be valid UTF-8 and `at` the start of a character.
inline Decoded decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

void append_utf8(char32_t cp, std::string& out);

// Offset of the first byte that is not part of well-formed UTF-8, or text.size(). Surrogates and overlong forms are
// not well formed.
size_t valid_utf8_prefix(std::string_view text);

// Turns bytes that arrive in any pieces into whole characters. A maximal ill-formed part becomes one U+FFFD, as in the
// Unicode Standard's recommended practice, so the result does not depend on where the pieces were cut.
class Utf8Stream {
 public:
  // Appends what is certain to `out`; at most three bytes stay back.
  void push(std::string_view bytes, std::string& out);
  // The end of the input: an unfinished character becomes one U+FFFD.
  void finish(std::string& out);
  // The end of the input: an unfinished character is forgotten.
  void drop() { size_ = 0; }
  bool pending() const { return size_ != 0; }

 private:
  char held_[4] = {};
  uint32_t size_ = 0;
};

}  // namespace mdi
