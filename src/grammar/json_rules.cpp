#include "grammar/json_rules.h"

#include <utility>

namespace mdi {
namespace {
constexpr int64_t kNoLimit = GrammarRules::kNoLimit;
constexpr int64_t kMaxDigits = 18;   // an integer fits 64 bits
constexpr char32_t kSmallSet = 256;  // characters

const CodePoints kDigit = {{'0', '9'}};
const CodePoints kNonZero = {{'1', '9'}};
const CodePoints kHex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
// What a JSON string may hold as it is.
const CodePoints kDirect = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};

// The letter of the short escape, and the character that it stands for.
constexpr std::pair<char, char32_t> kEscapes[] = {{'"', '"'}, {'/', '/'},  {'\\', '\\'}, {'b', 8},
                                                  {'f', 12},  {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};

// uXXXX: one character, or two halves of one.
GrammarRules::Expr unicode_escape(GrammarRules& rules) {
  const auto hex = [&](int64_t count) { return rules.repeat(rules.one_of(kHex), count, count); };
  const auto d = [&] { return rules.one_of({{'D', 'D'}, {'d', 'd'}}); };
  const auto not_d = rules.one_of({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  const auto high = rules.sequence({d(), rules.one_of({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex(2)});
  const auto low = rules.sequence({d(), rules.one_of({{'C', 'F'}, {'c', 'f'}}), hex(2)});
  return rules.choice({rules.sequence({rules.text("u"), not_d, hex(3)}),
                       rules.sequence({rules.text("u"), d(), rules.one_of({{'0', '7'}}), hex(2)}),
                       rules.sequence({rules.text("u"), high, rules.text("\\u"), low})});
}

}  // namespace

template <typename Make>
JsonRules::Expr JsonRules::once(std::optional<Rule>& slot, const char* name, Make make) {
  if (!slot) {
    slot = rules_.declare(name);
    rules_.define(*slot, make());
  }
  return rules_.ref(*slot);
}

JsonRules::Expr JsonRules::StringAlphabet::one_of(GrammarRules& rules, const CodePoints& set) const {
  char32_t size = 0;
  for (const auto& [first, last] : set) size += last - first + 1;
  CodePoints letters;
  for (const auto& [letter, stands_for] : kEscapes) {
    if (size <= kSmallSet && stands_for != '/' && contains(set, stands_for)) letters.emplace_back(letter, letter);
  }
  const Expr escaped =
      letters.empty() ? rules.never() : rules.sequence({rules.text("\\"), rules.one_of(normalised(letters))});
  return rules.choice({rules.one_of(intersection(set, kDirect)), escaped});
}

JsonRules::Expr JsonRules::StringAlphabet::counted(GrammarRules& rules) const {
  return rules.none_of({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
}

const Pattern::Alphabet& JsonRules::alphabet() { return alphabet_; }

JsonRules::Expr JsonRules::blank() {
  const Expr indent = rules_.repeat(rules_.one_of({{'\t', '\t'}, {' ', ' '}}), 0, kNoLimit);
  return rules_.optional(rules_.choice({rules_.text(" "), rules_.sequence({rules_.text("\n"), indent})}));
}

JsonRules::Expr JsonRules::quoted(Expr inside) {
  return rules_.sequence({rules_.text("\""), inside, rules_.text("\"")});
}

JsonRules::Expr JsonRules::string() {
  return once(string_, "string", [this] {
    CodePoints letters;
    for (const auto& [letter, stands_for] : kEscapes) letters.emplace_back(letter, letter);
    const Expr escape = rules_.choice({rules_.one_of(normalised(letters)), unicode_escape(rules_)});
    const Rule rest = rules_.declare("string");
    rules_.define(rest, rules_.choice({rules_.text("\""), rules_.sequence({rules_.one_of(kDirect), rules_.ref(rest)}),
                                       rules_.sequence({rules_.text("\\"), escape, rules_.ref(rest)})}));
    rules_.followed_by(rest,
                       rules_.sequence({blank(), rules_.one_of({{',', ','}, {':', ':'}, {']', ']'}, {'}', '}'}})}));
    return rules_.sequence({rules_.text("\""), rules_.ref(rest)});
  });
}

JsonRules::Expr JsonRules::integer() {
  return once(integer_, "integer", [this] {
    const Expr digits =
        rules_.sequence({rules_.one_of(kNonZero), rules_.repeat(rules_.one_of(kDigit), 0, kMaxDigits - 1)});
    return rules_.choice({rules_.text("0"), rules_.sequence({rules_.optional(rules_.text("-")), digits})});
  });
}

JsonRules::Expr JsonRules::number() {
  return once(number_, "number", [this] {
    const auto digits = [this](int64_t min, int64_t max) { return rules_.repeat(rules_.one_of(kDigit), min, max); };
    const Expr whole =
        rules_.choice({rules_.text("0"), rules_.sequence({rules_.one_of(kNonZero), digits(0, kMaxDigits - 1)})});
    const Expr fraction = rules_.sequence({rules_.text("."), digits(1, kMaxDigits)});
    const Expr exponent = rules_.sequence({rules_.one_of({{'E', 'E'}, {'e', 'e'}}),
                                           rules_.optional(rules_.one_of({{'+', '+'}, {'-', '-'}})), digits(1, 2)});
    return rules_.sequence(
        {rules_.optional(rules_.text("-")), whole, rules_.optional(fraction), rules_.optional(exponent)});
  });
}

JsonRules::Expr JsonRules::boolean() {
  return once(boolean_, "boolean", [this] { return rules_.choice({rules_.text("true"), rules_.text("false")}); });
}

JsonRules::Expr JsonRules::null() { return rules_.text("null"); }

JsonRules::Expr JsonRules::comma() { return rules_.sequence({blank(), rules_.text(","), blank()}); }

JsonRules::Expr JsonRules::member(Expr key, Expr value) {
  return rules_.sequence({key, blank(), rules_.text(":"), blank(), value});
}

JsonRules::Expr JsonRules::items(Expr item, int64_t min, int64_t max) {
  const Expr none = rules_.sequence({rules_.text("["), blank(), rules_.text("]")});
  if (max == 0) return min == 0 ? none : rules_.never();
  const Rule more = rules_.rule("items", rules_.sequence({comma(), item}));
  const Expr rest = rules_.repeat(rules_.ref(more), min > 0 ? min - 1 : 0, max == kNoLimit ? max : max - 1);
  const Expr some = rules_.sequence({rules_.text("["), blank(), item, rest, blank(), rules_.text("]")});
  return min == 0 ? rules_.choice({some, none}) : some;
}

JsonRules::Expr JsonRules::array() {
  return once(array_, "array", [this] { return items(value(), 0, kNoLimit); });
}

JsonRules::Expr JsonRules::object() {
  return once(object_, "object", [this] {
    const Rule one = rules_.rule("member", member(string(), value()));
    const Expr more = rules_.repeat(rules_.sequence({comma(), rules_.ref(one)}), 0, kNoLimit);
    return rules_.sequence({rules_.text("{"), blank(),
                            rules_.optional(rules_.sequence({rules_.ref(one), more, blank()})), rules_.text("}")});
  });
}

JsonRules::Expr JsonRules::value() {
  return once(value_, "value", [this] {
    return rules_.choice({string(), number(), boolean(), null(), array(), object()});
  });
}

JsonRules::Expr JsonRules::literal(const OrderedJson& value) { return rules_.text(python_json(value)); }

}  // namespace mdi
