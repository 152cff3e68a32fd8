#include "text/pre_tokenizer.h"

#include "text/unicode.h"

namespace mdi {
namespace {

// A text with its code points' classes. Positions are byte offsets; at the end there is no class and no character.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool ended(size_t at) const { return at >= text_.size(); }
  char byte(size_t at) const { return ended(at) ? '\0' : text_[at]; }
  bool is(size_t at, unsigned mask) const { return !ended(at) && (classes_[cp(at)] & mask) != 0; }
  bool is_newline(size_t at) const { return !ended(at) && (text_[at] == '\r' || text_[at] == '\n'); }
  bool is_ascii_letter(size_t at) const {
    const char c = static_cast<char>(byte(at) | 0x20);
    return c >= 'a' && c <= 'z';
  }
  bool is_ascii_punct(size_t at) const {
    const char c = byte(at);
    return c > ' ' && c < 0x7F && (classes_[static_cast<unsigned char>(c)] & (kPunct | kSymbol)) != 0;
  }
  bool is_cjk(size_t at) const {
    if (ended(at)) return false;
    const char32_t c = cp(at);
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
  }
  size_t next(size_t at) const { return at + decode_utf8(text_, at).size; }
  size_t end_of_run(size_t at, unsigned mask) const {
    while (is(at, mask)) at = next(at);
    return at;
  }
  size_t size() const { return text_.size(); }

 private:
  char32_t cp(size_t at) const { return decode_utf8(text_, at).cp; }

  std::string_view text_;
  const uint8_t* classes_ = char_class_table();
};

// Both \s+(?!\S)|\s+ : all of the run at the end of the text; before something else all but its last character, and
// that one alone if there is no other.
size_t match_spaces(const Reader& in, size_t at) {
  size_t end = at, last = at;
  while (in.is(end, kSpace)) {
    last = end;
    end = in.next(end);
  }
  return in.ended(end) || last == at ? end : last;
}

// \s*[\r\n]+ : up to and with the run's last line break.
size_t match_line_breaks(const Reader& in, size_t at) {
  size_t end = at;
  for (; in.is(at, kSpace); at = in.next(at)) {
    if (in.is_newline(at)) end = at + 1;
  }
  return end;
}

// The alternatives in the pattern's order; returns `at` when none matches here.
size_t match_words(const Reader& in, size_t at) {
  if (in.is_ascii_punct(at) && in.is_ascii_letter(at + 1)) {
    size_t end = at + 1;
    while (in.is_ascii_letter(end)) ++end;
    return end;
  }
  if (in.is(at, kLetter | kMark)) return in.end_of_run(at, kLetter | kMark);
  if (!in.is_newline(at) && !in.is(at, kPunct | kSymbol)) {
    const size_t word = in.next(at);
    if (in.is(word, kLetter | kMark)) return in.end_of_run(word, kLetter | kMark);
  }
  const size_t signs = in.byte(at) == ' ' ? at + 1 : at;
  if (in.is(signs, kPunct | kSymbol)) {
    size_t end = in.end_of_run(signs, kPunct | kSymbol);
    while (in.is_newline(end)) ++end;
    return end;
  }
  if (!in.is(at, kSpace)) return at;
  if (const size_t end = match_line_breaks(in, at); end > at) return end;
  return match_spaces(in, at);
}

size_t match_contraction(const Reader& in, size_t at) {
  if (in.byte(at) != '\'') return at;
  const char a = in.byte(at + 1), b = in.byte(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  return at;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ : every character matches something.
size_t match_gpt2(const Reader& in, size_t at) {
  if (const size_t end = match_contraction(in, at); end > at) return end;
  const size_t body = in.byte(at) == ' ' ? at + 1 : at;
  if (in.is(body, kLetter)) return in.end_of_run(body, kLetter);
  if (in.is(body, kNumber)) return in.end_of_run(body, kNumber);
  if (!in.ended(body) && !in.is(body, kSpace)) {
    size_t end = body;
    while (!in.ended(end) && !in.is(end, kSpace | kLetter | kNumber)) end = in.next(end);
    return end;
  }
  return match_spaces(in, at);
}

PieceRange find_digits(const Reader& in, size_t at) {
  while (!in.ended(at) && !in.is(at, kNumber)) at = in.next(at);
  size_t end = at;
  for (int i = 0; i < 3 && in.is(end, kNumber); ++i) end = in.next(end);
  return {at, end};
}

PieceRange find_cjk(const Reader& in, size_t at) {
  while (!in.ended(at) && !in.is_cjk(at)) at = in.next(at);
  size_t end = at;
  while (in.is_cjk(end)) end = in.next(end);
  return {at, end};
}

}  // namespace

std::string_view split_pattern(SplitRule rule) {
  switch (rule) {
    case SplitRule::kDigits:
      return R"(\p{N}{1,3})";
    case SplitRule::kCjk:
      return "[一-龥\u3040-ゟ゠-ヿ]+";
    case SplitRule::kWords:
      return R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
             "\r\n"
             R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
             "\r\n"
             R"(]*|\s*[)"
             "\r\n"
             R"(]+|\s+(?!\S)|\s+)";
    case SplitRule::kGpt2:
      break;
  }
  return {};
}

PieceRange find_match(SplitRule rule, std::string_view text, size_t from) {
  const Reader in(text);
  if (rule == SplitRule::kDigits) return find_digits(in, from);
  if (rule == SplitRule::kCjk) return find_cjk(in, from);
  size_t at = from;
  while (!in.ended(at)) {
    const size_t end = rule == SplitRule::kWords ? match_words(in, at) : match_gpt2(in, at);
    if (end > at) return {at, end};
    at = in.next(at);
  }
  return {at, at};
}

}  // namespace mdi
