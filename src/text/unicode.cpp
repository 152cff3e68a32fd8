#include "text/unicode.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace mdi {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes that may follow a lead byte (Unicode Standard, table 3-7); size 1 with ok false is no lead byte at all.
struct Lead {
  uint32_t size;
  unsigned char second_min, second_max;
  bool ok;
};

Lead lead_of(unsigned char b) {
  if (b < 0x80) return {1, 0, 0, true};
  if (b < 0xC2) return {1, 0, 0, false};
  if (b < 0xE0) return {2, 0x80, 0xBF, true};
  if (b == 0xE0) return {3, 0xA0, 0xBF, true};
  if (b == 0xED) return {3, 0x80, 0x9F, true};
  if (b < 0xF0) return {3, 0x80, 0xBF, true};
  if (b == 0xF0) return {4, 0x90, 0xBF, true};
  if (b < 0xF4) return {4, 0x80, 0xBF, true};
  if (b == 0xF4) return {4, 0x80, 0x8F, true};
  return {1, 0, 0, false};
}

enum class Form : uint8_t { kWhole, kUnfinished, kBad };
struct Part {
  Form form;
  size_t size;
};

// The character, or the maximal ill-formed part, that starts the (non-empty) text.
Part first_part(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (!lead.ok) return {Form::kBad, 1};
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == text.size()) return {Form::kUnfinished, i};
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Form::kBad, i};
  }
  return {Form::kWhole, lead.size};
}

// First byte at or after `from` with its high bit set.
size_t skip_ascii(std::string_view text, size_t from) {
  while (from + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + from, 8);
    if (word & 0x8080808080808080u) break;
    from += 8;
  }
  while (from < text.size() && static_cast<unsigned char>(text[from]) < 0x80) ++from;
  return from;
}

}  // namespace

const uint8_t* char_class_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> bits(kCodePoints, 0);
    for (size_t i = 0; i < kCharRangeCount; ++i) {
      const CharRange& range = kCharRanges[i];
      std::fill(bits.begin() + range.first, bits.begin() + range.last + 1, static_cast<uint8_t>(range.bits));
    }
    return bits;
  }();
  return table.data();
}

void append_utf8(char32_t cp, std::string& out) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | cp >> 6);
    put(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    put(0xE0 | cp >> 12);
    put(0x80 | (cp >> 6 & 0x3F));
    put(0x80 | (cp & 0x3F));
  } else {
    put(0xF0 | cp >> 18);
    put(0x80 | (cp >> 12 & 0x3F));
    put(0x80 | (cp >> 6 & 0x3F));
    put(0x80 | (cp & 0x3F));
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = skip_ascii(text, 0);
  while (at < text.size()) {
    const Part part = first_part(text.substr(at));
    if (part.form != Form::kWhole) return at;
    at = skip_ascii(text, at + part.size);
  }
  return at;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  // The held bytes can only become whole or bad together with the next few, so only those are looked at byte by byte.
  while (size_ != 0 && !bytes.empty()) {
    held_[size_++] = bytes.front();
    const Part part = first_part({held_, size_});
    if (part.form == Form::kBad) {
      out += kReplacement;
      size_ = 0;  // the new byte is no part of it and starts afresh below
      break;
    }
    bytes.remove_prefix(1);
    if (part.form == Form::kWhole) {
      out.append(held_, size_);
      size_ = 0;
    }
  }
  while (!bytes.empty()) {
    const size_t good = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, good));
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    const Part part = first_part(bytes);
    if (part.form == Form::kUnfinished) {
      std::memcpy(held_, bytes.data(), part.size);
      size_ = static_cast<uint32_t>(part.size);
      break;
    }
    out += kReplacement;
    bytes.remove_prefix(part.size);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (size_ != 0) out += kReplacement;
  size_ = 0;
}

}  // namespace mdi
