// A context-free grammar being written: expressions in a pool, named rules, and the checks that make it safe to
// compile. Its text is XGrammar's EBNF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"

namespace mdi {

class GrammarRules {
 public:
  using Expr = int32_t;  // index of an expression
  using Rule = int32_t;  // index of a rule
  static constexpr int64_t kNoLimit = -1;

  // Throws mdi::Error once the cost of all that was made exceeds max_cost, and for repetitions that multiply out to
  // more than max_unrolled characters: matching them takes as many states at once.
  explicit GrammarRules(int64_t max_cost, int64_t max_unrolled = 2'000);

  Expr text(std::string_view utf8);    // exactly this; empty: the empty text
  Expr one_of(const CodePoints& set);  // one character; an empty set matches nothing
  // One character outside of the set. Counted repetitions of these are cheap, if what follows is a text that begins
  // with a character of the set; of one_of they are not.
  Expr none_of(const CodePoints& set);
  Expr token(int32_t id);  // a control token
  Expr ref(Rule rule);
  Expr never();
  Expr sequence(std::vector<Expr> parts);
  Expr choice(std::vector<Expr> options);  // no option matches nothing
  // min to max times; max may be kNoLimit.
  Expr repeat(Expr part, int64_t min, int64_t max);
  Expr optional(Expr part) { return repeat(part, 0, 1); }

  // A rule may be referred to before it is defined. `where` names it in errors.
  Rule declare(std::string where);
  void define(Rule rule, Expr body);
  Rule rule(std::string where, Expr body);
  // What always follows the rule, unless the answer ends behind it. Says nothing about what matches: it spares XGrammar
  // looking at tokens that go on behind the rule.
  void followed_by(Rule rule, Expr lookahead);

  // Which of these no finite text can match: some of what they name is missing, or they go on for ever.
  std::vector<bool> impossible(const std::vector<Expr>& exprs) const;

  bool is_never(Expr expr) const { return nodes_[static_cast<size_t>(expr)].kind == Kind::kNever; }

  // What XGrammar compiles, from `root`, without what no finite text can match. Throws mdi::Error when nothing is left,
  // and for a rule that refers to itself before any character.
  std::string ebnf(Rule root) const;
  int64_t cost() const { return cost_; }

 private:
  enum class Kind : uint8_t { kText, kClass, kToken, kRef, kNever, kSequence, kChoice, kRepeat };
  struct Node {
    Kind kind;
    std::string text;  // kText; kClass: as EBNF
    int32_t id = 0;    // kToken, kRef; kRepeat: what is repeated
    std::vector<Expr> parts = {};
    int64_t min = 0, max = 0;  // kRepeat
    int64_t unrolled = 1;      // characters, repetitions multiplied out, what rules stand for left out
  };
  struct Definition {
    std::string where;
    Expr body = -1, lookahead = -1;
  };

  Expr add(Node node, int64_t cost);
  const Node& node(Expr expr) const { return nodes_[static_cast<size_t>(expr)]; }
  bool holds(Expr expr, const std::vector<char>& of_rules, bool nullable) const;
  std::vector<char> fixpoint(bool nullable) const;
  void first_rules(Expr expr, const std::vector<char>& nullable, std::vector<Rule>& found) const;
  void check_progress() const;
  void write(Expr expr, const std::vector<char>& finite, std::string& out) const;

  int64_t max_cost_, max_unrolled_;
  int64_t cost_ = 0;
  std::vector<Node> nodes_;
  std::vector<Definition> rules_;
};

}  // namespace mdi
