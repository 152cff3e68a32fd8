#include "grammar/rules.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/error.h"
#include "text/unicode.h"

namespace mdi {
namespace {

// A repetition costs as many states as it is unrolled into: XGrammar counts longer ones at run time.
constexpr int64_t kUnrolled = 128;

std::string escaped(char32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ' ' || c == '_') {
    return {static_cast<char>(c)};
  }
  std::array<char, 12> buffer{};
  std::snprintf(buffer.data(), buffer.size(), c > 0xFFFF ? "\\U%08X" : "\\u%04X", static_cast<unsigned>(c));
  return buffer.data();
}

// Ranges are cut where UTF-8 gets longer: within one length every sequence between two ends is well-formed.
std::string class_text(const CodePoints& set) {
  std::string text = "[";
  for (const CodePoints& part : {CodePoints{{0, 0x7F}}, CodePoints{{0x80, 0x7FF}}, CodePoints{{0x800, 0xFFFF}},
                                 CodePoints{{0x10000, 0x10FFFF}}}) {
    for (const auto& [first, last] : intersection(set, part)) {
      text += escaped(first);
      if (last > first) text.append(1, '-').append(escaped(last));
    }
  }
  return text + "]";
}

}  // namespace

GrammarRules::GrammarRules(int64_t max_cost, int64_t max_unrolled) : max_cost_(max_cost), max_unrolled_(max_unrolled) {}

GrammarRules::Expr GrammarRules::add(Node node, int64_t cost) {
  cost_ += cost;
  if (cost_ > max_cost_) {
    throw Error("grammar", "too large: expected at most " + std::to_string(max_cost_) +
                               " states (characters, alternatives and repetitions together)");
  }
  for (const Expr part : node.parts) node.unrolled += nodes_[static_cast<size_t>(part)].unrolled;
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

GrammarRules::Expr GrammarRules::text(std::string_view utf8) {
  std::string quoted = "\"";
  for (size_t at = 0; at < utf8.size();) {
    const Decoded c = decode_utf8(utf8, at);
    quoted += escaped(c.cp);
    at += c.size;
  }
  return add({Kind::kText, quoted + "\""}, static_cast<int64_t>(utf8.size()) + 1);
}

GrammarRules::Expr GrammarRules::one_of(const CodePoints& set) {
  if (set.empty()) return never();
  return add({Kind::kClass, class_text(set)}, 1 + static_cast<int64_t>(set.size()) / 4);
}

GrammarRules::Expr GrammarRules::none_of(const CodePoints& set) {
  const std::string inside = class_text(set);
  std::string text = "[^";
  text.append(inside, 1, inside.size() - 2).append("\\uD800-\\uDFFF]");
  return add({Kind::kClass, std::move(text)}, 1 + static_cast<int64_t>(set.size()) / 4);
}

GrammarRules::Expr GrammarRules::token(int32_t id) { return add({Kind::kToken, {}, id}, 1); }
GrammarRules::Expr GrammarRules::ref(Rule rule) { return add({Kind::kRef, {}, rule, {}, 0, 0, 0}, 1); }
GrammarRules::Expr GrammarRules::never() { return add({Kind::kNever, {}}, 0); }

GrammarRules::Expr GrammarRules::sequence(std::vector<Expr> parts) {
  if (std::any_of(parts.begin(), parts.end(), [this](Expr e) { return is_never(e); })) return never();
  if (parts.size() == 1) return parts[0];
  return add({Kind::kSequence, {}, 0, std::move(parts)}, 1);
}

GrammarRules::Expr GrammarRules::choice(std::vector<Expr> options) {
  options.erase(std::remove_if(options.begin(), options.end(), [this](Expr e) { return is_never(e); }), options.end());
  if (options.empty()) return never();
  if (options.size() == 1) return options[0];
  return add({Kind::kChoice, {}, 0, std::move(options)}, 1);
}

GrammarRules::Expr GrammarRules::repeat(Expr part, int64_t min, int64_t max) {
  if (max != kNoLimit && min > max) return never();
  if (max == 0) return text("");
  if (is_never(part)) return min == 0 ? text("") : part;
  if (min == 1 && max == 1) return part;
  // Repetitions of repetitions make many ways to match one text.
  const Node& inner = node(part);
  if (inner.kind == Kind::kRepeat && inner.min <= 1 && inner.max != 0) {
    const bool no_end = inner.max == kNoLimit || max == kNoLimit;
    return repeat(inner.id, inner.min * min, no_end ? kNoLimit : inner.max * max);
  }
  const int64_t count = std::max<int64_t>({min, max, 1});
  const bool counted = inner.kind == Kind::kClass && inner.text[1] == '^';
  const int64_t inside = counted ? 0 : inner.unrolled;
  if (inside > 0 && count > max_unrolled_ / inside) {
    throw Error("grammar", "repetitions: expected at most " + std::to_string(max_unrolled_) +
                               " characters, repetitions inside one another multiplied out");
  }
  return add({Kind::kRepeat, {}, part, {}, min, max, counted ? 1 : inside * count}, 1 + std::min(count, kUnrolled));
}

GrammarRules::Rule GrammarRules::declare(std::string where) {
  rules_.push_back({std::move(where)});
  return static_cast<Rule>(rules_.size() - 1);
}

void GrammarRules::define(Rule rule, Expr body) { rules_[static_cast<size_t>(rule)].body = body; }

void GrammarRules::followed_by(Rule rule, Expr lookahead) { rules_[static_cast<size_t>(rule)].lookahead = lookahead; }

GrammarRules::Rule GrammarRules::rule(std::string where, Expr body) {
  const Rule made = declare(std::move(where));
  define(made, body);
  return made;
}

// nullable: whether the empty text matches; otherwise whether any finite text does.
bool GrammarRules::holds(Expr expr, const std::vector<char>& of_rules, bool nullable) const {
  const Node& n = node(expr);
  const auto part_holds = [&](Expr e) { return holds(e, of_rules, nullable); };
  switch (n.kind) {
    case Kind::kText:
      return !nullable || n.text.size() == 2;
    case Kind::kClass:
    case Kind::kToken:
      return !nullable;
    case Kind::kNever:
      return false;
    case Kind::kRef:
      return of_rules[static_cast<size_t>(n.id)] != 0;
    case Kind::kSequence:
      return std::all_of(n.parts.begin(), n.parts.end(), part_holds);
    case Kind::kChoice:
      return std::any_of(n.parts.begin(), n.parts.end(), part_holds);
    case Kind::kRepeat:
      return n.min == 0 || part_holds(n.id);
  }
  return false;
}

std::vector<char> GrammarRules::fixpoint(bool nullable) const {
  std::vector<char> known(rules_.size(), 0);
  // Both ways: rules refer to earlier ones and to later ones, mostly in chains.
  for (bool changed = true; changed;) {
    changed = false;
    const auto settle = [&](size_t i) {
      if (known[i] != 0 || rules_[i].body < 0 || !holds(rules_[i].body, known, nullable)) return;
      known[i] = 1;
      changed = true;
    };
    for (size_t i = 0; i < rules_.size(); ++i) settle(i);
    for (size_t i = rules_.size(); i-- > 0;) settle(i);
  }
  return known;
}

// The rules that may begin before any character is read.
void GrammarRules::first_rules(Expr expr, const std::vector<char>& nullable, std::vector<Rule>& found) const {
  const Node& n = node(expr);
  if (n.kind == Kind::kRef) found.push_back(n.id);
  if (n.kind == Kind::kRepeat) first_rules(n.id, nullable, found);
  for (const Expr part : n.parts) {
    first_rules(part, nullable, found);
    if (n.kind == Kind::kSequence && !holds(part, nullable, true)) break;
  }
}

void GrammarRules::check_progress() const {
  const std::vector<char> nullable = fixpoint(true);
  enum State : char { kNew, kOpen, kDone };
  std::vector<char> state(rules_.size(), kNew);
  struct Frame {
    Rule rule;
    std::vector<Rule> next;
  };
  const auto frame = [&](Rule rule) {
    Frame made{rule, {}};
    state[static_cast<size_t>(rule)] = kOpen;
    first_rules(rules_[static_cast<size_t>(rule)].body, nullable, made.next);
    return made;
  };
  for (Rule start = 0; start < static_cast<Rule>(rules_.size()); ++start) {
    if (state[static_cast<size_t>(start)] != kNew) continue;
    std::vector<Frame> open;
    open.push_back(frame(start));
    while (!open.empty()) {
      if (open.back().next.empty()) {
        state[static_cast<size_t>(open.back().rule)] = kDone;
        open.pop_back();
        continue;
      }
      const Rule next = open.back().next.back();
      open.back().next.pop_back();
      if (state[static_cast<size_t>(next)] == kOpen) {
        throw Error(rules_[static_cast<size_t>(next)].where, "refers to itself with nothing in between");
      }
      if (state[static_cast<size_t>(next)] == kNew) open.push_back(frame(next));
    }
  }
}

void GrammarRules::write(Expr expr, const std::vector<char>& finite, std::string& out) const {
  const Node& n = node(expr);
  switch (n.kind) {
    case Kind::kText:
    case Kind::kClass:
      out += n.text;
      break;
    case Kind::kToken:
      out.append("Token(").append(std::to_string(n.id)).append(")");
      break;
    case Kind::kRef:
      out.append("r").append(std::to_string(n.id));
      break;
    case Kind::kNever:
      break;  // never finite, so never asked for
    case Kind::kSequence:
    case Kind::kChoice: {
      const char* between = "(";
      for (const Expr part : n.parts) {
        if (n.kind == Kind::kChoice && !holds(part, finite, false)) continue;
        out += between;
        write(part, finite, out);
        between = n.kind == Kind::kChoice ? " | " : " ";
      }
      out += ')';
      break;
    }
    case Kind::kRepeat:
      if (!holds(n.id, finite, false)) {
        out += "\"\"";
        break;
      }
      if (node(n.id).kind == Kind::kClass) {
        write(n.id, finite, out);
      } else {
        out += '(';
        write(n.id, finite, out);
        out += ')';
      }
      if (n.min == 0 && n.max == 1) {
        out += '?';
      } else if (n.max == kNoLimit && n.min <= 1) {
        out += n.min == 0 ? "*" : "+";
      } else {
        out.append("{").append(std::to_string(n.min)).append(",");
        out.append(n.max == kNoLimit ? "" : std::to_string(n.max)).append("}");
      }
      break;
  }
}

std::vector<bool> GrammarRules::impossible(const std::vector<Expr>& exprs) const {
  const std::vector<char> finite = fixpoint(false);
  std::vector<bool> found;
  found.reserve(exprs.size());
  for (const Expr expr : exprs) found.push_back(!holds(expr, finite, false));
  return found;
}

std::string GrammarRules::ebnf(Rule root) const {
  const std::vector<char> finite = fixpoint(false);
  if (finite[static_cast<size_t>(root)] == 0) {
    throw Error(rules_[static_cast<size_t>(root)].where, "nothing can satisfy it");
  }
  check_progress();
  std::string out = "root ::= r";
  out.append(std::to_string(root)).append("\n");
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (finite[i] == 0) continue;
    out.append("r").append(std::to_string(i)).append(" ::= ");
    write(rules_[i].body, finite, out);
    if (rules_[i].lookahead >= 0) {
      out += " (=";
      write(rules_[i].lookahead, finite, out);
      out += ')';
    }
    out += '\n';
  }
  return out;
}

}  // namespace mdi
