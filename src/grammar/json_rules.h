// JSON as a grammar: values of any kind, strings, numbers, and how characters are written inside of a string.
//
// What matches is JSON that any reader takes: no control characters in strings, no half surrogate pairs, numbers of at
// most 18 digits before and behind the point and a two-digit exponent. White space between tokens is none, one space,
// or a new line and its indentation, so that a model does not go on with empty lines.
//
// How the rules are cut decides what a mask costs: XGrammar keeps a mask for each place in a rule, and what goes on
// behind the rule's end has to be looked at each time. So white space and single characters are written out where they
// stand, and a rule ends only behind something that few tokens contain.
#pragma once

#include <optional>
#include <string>

#include "grammar/pattern.h"
#include "grammar/rules.h"
#include "text/ordered_json.h"

namespace mdi {

class JsonRules {
 public:
  using Expr = GrammarRules::Expr;
  using Rule = GrammarRules::Rule;

  explicit JsonRules(GrammarRules& rules) : rules_(rules) {}

  // Each is a reference to a rule that is made when first asked for.
  Expr value();
  Expr object();
  Expr array();
  Expr string();
  Expr number();
  Expr integer();
  Expr boolean();
  Expr null();
  Expr blank();

  // `text` in quotes, as a value that is always the same is written.
  Expr literal(const OrderedJson& value);
  Expr quoted(Expr inside);
  // "name" : value
  Expr member(Expr key, Expr value);
  // [ ] with min to max items (kNoLimit).
  Expr items(Expr item, int64_t min, int64_t max);
  // , between things
  Expr comma();

  // Characters of a JSON string. Those that need an escape are written with the short one, and only come where a set is
  // small: in a string of which more is asked than that it is one, "any character" is any that needs no escape.
  const Pattern::Alphabet& alphabet();

 private:
  class StringAlphabet : public Pattern::Alphabet {
   public:
    Expr one_of(GrammarRules& rules, const CodePoints& set) const override;
    Expr counted(GrammarRules& rules) const override;
  };

  template <typename Make>
  Expr once(std::optional<Rule>& slot, const char* name, Make make);

  GrammarRules& rules_;
  StringAlphabet alphabet_;
  std::optional<Rule> value_, object_, array_, string_, number_, integer_, boolean_;
};

// Characters as they are. A bounded text has no '<', with which the tag behind it begins.
class PlainAlphabet : public Pattern::Alphabet {
 public:
  GrammarRules::Expr one_of(GrammarRules& rules, const CodePoints& set) const override { return rules.one_of(set); }
  GrammarRules::Expr counted(GrammarRules& rules) const override { return rules.none_of({{'<', '<'}}); }
};

}  // namespace mdi
