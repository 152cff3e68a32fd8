#include "grammar/pattern.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "text/unicode.h"

namespace mdi {
namespace {

const CodePoints kDigit = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kBlank = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePoints kLineEnds = {{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}};

}  // namespace

// Recursive descent over the pattern's characters; as deep as its groups.
class PatternParser {
 public:
  PatternParser(std::string_view pattern, const std::string& where, PatternLimits limits) : limits_(limits) {
    made_.where_ = where;
    if (valid_utf8_prefix(pattern) != pattern.size()) throw Error(where, "the pattern is not UTF-8");
    for (size_t at = 0; at < pattern.size();) {
      const Decoded c = decode_utf8(pattern, at);
      chars_.push_back(c.cp);
      at += c.size;
    }
  }

  Pattern parse() {
    made_.root_ = alternatives(0);
    if (!at_end()) fail("a ')' without its '('");
    return std::move(made_);
  }

 private:
  using Kind = Pattern::Kind;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(made_.where_, "at character " + std::to_string(at_) + " of the pattern: " + what);
  }

  bool at_end() const { return at_ >= chars_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : 0; }
  bool take(char32_t c) {
    if (at_end() || chars_[at_] != c) return false;
    ++at_;
    return true;
  }
  char32_t next(const char* wanted) {
    if (at_end()) fail(std::string("ends where ") + wanted + " was expected");
    return chars_[at_++];
  }
  int32_t add(Pattern::Node node) {
    made_.nodes_.push_back(std::move(node));
    return static_cast<int32_t>(made_.nodes_.size() - 1);
  }

  int32_t alternatives(int depth) {
    if (depth > limits_.max_depth)
      fail("groups inside one another: expected at most " + std::to_string(limits_.max_depth));
    std::vector<int32_t> options = {sequence(depth)};
    while (take('|')) options.push_back(sequence(depth));
    return options.size() == 1 ? options[0] : add({Kind::kChoice, {}, std::move(options)});
  }

  int32_t sequence(int depth) {
    std::vector<int32_t> parts;
    while (!at_end() && peek() != '|' && peek() != ')') parts.push_back(quantified(depth));
    return add({Kind::kSequence, {}, std::move(parts)});
  }

  int32_t quantified(int depth) {
    const int32_t part = atom(depth);
    const Kind kind = made_.nodes_[static_cast<size_t>(part)].kind;
    int64_t min = 0, max = 0;
    if (!quantifier(min, max)) return part;
    if (kind == Kind::kBegin || kind == Kind::kEnd) fail("an anchor cannot be repeated");
    take('?');  // lazy or not: the same texts match
    const char32_t c = peek();
    if (c == '*' || c == '+' || c == '?' || c == '{') fail("a quantifier behind a quantifier");
    return add({Kind::kRepeat, {}, {part}, min, max});
  }

  bool quantifier(int64_t& min, int64_t& max) {
    min = 0;
    max = GrammarRules::kNoLimit;
    if (take('*')) return true;
    if (take('+')) {
      min = 1;
      return true;
    }
    if (take('?')) {
      max = 1;
      return true;
    }
    if (peek() != '{') return false;
    ++at_;
    min = max = count();
    if (take(',')) max = peek() == '}' ? GrammarRules::kNoLimit : count();
    if (!take('}')) fail("expected '}' behind a count");
    if (max != GrammarRules::kNoLimit && max < min) fail("a count whose upper end is below its lower end");
    return true;
  }

  int64_t count() {
    if (peek() < '0' || peek() > '9') fail("expected a count behind '{' (a brace itself is written \\{)");
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<int64_t>(chars_[at_++] - '0');
      if (value > limits_.max_repeat) fail("a count: expected at most " + std::to_string(limits_.max_repeat));
    }
    return value;
  }

  int32_t atom(int depth) {
    const char32_t c = next("an atom");
    switch (c) {
      case '^':
        return add({Kind::kBegin});
      case '$':
        return add({Kind::kEnd});
      case '.':
        return add({Kind::kSet, complement(kLineEnds)});
      case '(':
        return group(depth);
      case '[':
        return add({Kind::kSet, character_class()});
      case '\\':
        return add({Kind::kSet, escape(false)});
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        fail("a quantifier with nothing to repeat");
      default:
        return add({Kind::kSet, {{c, c}}});
    }
  }

  int32_t group(int depth) {
    if (take('?')) {
      const bool named = peek() == '<' && peek(1) != '=' && peek(1) != '!';
      if (named) {
        while (next("'>'") != '>') {
        }
      } else if (!take(':')) {
        fail("look-ahead, look-behind and flags are not supported");
      }
    }
    const int32_t inside = alternatives(depth + 1);
    if (!take(')')) fail("a '(' without its ')'");
    return inside;
  }

  CodePoints character_class() {
    const bool negated = take('^');
    CodePoints ranges;
    while (!take(']')) {
      const CodePoints low = class_unit();
      const bool single = low.size() == 1 && low[0].first == low[0].second;
      if (single && peek() == '-' && peek(1) != ']' && at_ + 1 < chars_.size()) {
        ++at_;
        const CodePoints high = class_unit();
        if (high.size() != 1 || high[0].first != high[0].second) fail("a range that ends in a set");
        if (high[0].first < low[0].first) fail("a range whose end is below its beginning");
        ranges.emplace_back(low[0].first, high[0].first);
      } else {
        ranges.insert(ranges.end(), low.begin(), low.end());
      }
    }
    const CodePoints set = normalised(ranges);
    return negated ? complement(set) : set;
  }

  CodePoints class_unit() {
    const char32_t c = next("']'");
    if (c == '\\') return escape(true);
    return {{c, c}};
  }

  CodePoints escape(bool in_class) {
    const char32_t c = next("an escape");
    switch (c) {
      case 'd':
        return kDigit;
      case 'D':
        return complement(kDigit);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kBlank;
      case 'S':
        return complement(kBlank);
      case 'n':
        return {{'\n', '\n'}};
      case 't':
        return {{'\t', '\t'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case '0':
        return {{0, 0}};
      case 'b':
        if (in_class) return {{8, 8}};
        break;
      case 'x':
        return hexadecimal(2);
      case 'u':
        return hexadecimal(4);
      case 'c': {
        const char32_t letter = next("a letter") & 0x1F;
        return {{letter, letter}};
      }
      default:
        break;
    }
    if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
      --at_;
      fail(std::string("the escape \\") + static_cast<char>(c) + " is not supported");
    }
    return {{c, c}};
  }

  CodePoints hexadecimal(int digits) {
    const bool braces = digits == 4 && take('{');
    char32_t value = 0;
    int found = 0;
    for (; found < (braces ? 6 : digits); ++found) {
      const char32_t c = peek();
      if (c >= 0x80 || std::isxdigit(static_cast<int>(c)) == 0) break;
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      ++at_;
    }
    if (braces ? found == 0 || !take('}') : found < digits) fail("expected hexadecimal digits");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail("a surrogate, or no Unicode character at all");
    return {{value, value}};
  }

  PatternLimits limits_;
  Pattern made_;
  std::vector<char32_t> chars_;
  size_t at_ = 0;
};

Pattern Pattern::parse(std::string_view pattern, const std::string& where, PatternLimits limits) {
  return PatternParser(pattern, where, limits).parse();
}

GrammarRules::Expr Pattern::write(int32_t index, GrammarRules& rules, const Alphabet& alphabet) const {
  const Node& node = nodes_[static_cast<size_t>(index)];
  std::vector<GrammarRules::Expr> parts;
  switch (node.kind) {
    case Kind::kSet:
      return alphabet.one_of(rules, node.set);
    case Kind::kRepeat:
      return rules.repeat(write(node.parts[0], rules, alphabet), node.min, node.max);
    case Kind::kBegin:
    case Kind::kEnd:
      throw Error(where_, "an anchor inside of the pattern is not supported");
    case Kind::kSequence:
    case Kind::kChoice:
      break;
  }
  parts.reserve(node.parts.size());
  for (const int32_t part : node.parts) parts.push_back(write(part, rules, alphabet));
  if (node.kind == Kind::kChoice) return rules.choice(std::move(parts));
  return parts.empty() ? rules.text("") : rules.sequence(std::move(parts));
}

GrammarRules::Expr Pattern::write_outermost(GrammarRules& rules, const Alphabet& alphabet, bool anywhere) const {
  // Groups around the whole are looked through.
  int32_t root = root_;
  const auto node = [this](int32_t index) -> const Node& { return nodes_[static_cast<size_t>(index)]; };
  while (node(root).kind == Kind::kSequence && node(root).parts.size() == 1) root = node(root).parts[0];
  const std::vector<int32_t> options = node(root).kind == Kind::kChoice ? node(root).parts : std::vector<int32_t>{root};

  std::vector<GrammarRules::Expr> written;
  for (int32_t option : options) {
    while (node(option).kind == Kind::kSequence && node(option).parts.size() == 1) option = node(option).parts[0];
    std::vector<int32_t> parts =
        node(option).kind == Kind::kSequence ? node(option).parts : std::vector<int32_t>{option};
    bool begins = !anywhere, ends = !anywhere;
    while (!parts.empty() && node(parts.front()).kind == Kind::kBegin) {
      begins = true;
      parts.erase(parts.begin());
    }
    while (!parts.empty() && node(parts.back()).kind == Kind::kEnd) {
      ends = true;
      parts.pop_back();
    }
    std::vector<GrammarRules::Expr> sequence;
    const auto anything = [&] {
      return rules.repeat(alphabet.one_of(rules, all_code_points()), 0, GrammarRules::kNoLimit);
    };
    if (!begins) sequence.push_back(anything());
    for (const int32_t part : parts) sequence.push_back(write(part, rules, alphabet));
    if (!ends) sequence.push_back(anything());
    written.push_back(sequence.empty() ? rules.text("") : rules.sequence(std::move(sequence)));
  }
  return rules.choice(std::move(written));
}

GrammarRules::Expr Pattern::whole(GrammarRules& rules, const Alphabet& alphabet) const {
  return write_outermost(rules, alphabet, false);
}
GrammarRules::Expr Pattern::found(GrammarRules& rules, const Alphabet& alphabet) const {
  return write_outermost(rules, alphabet, true);
}

}  // namespace mdi
