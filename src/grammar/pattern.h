// Regular expressions: the part of ECMAScript's language that is regular. Anchors may only stand at the ends of the
// whole pattern or of its outermost alternatives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/rules.h"

namespace mdi {

struct PatternLimits {
  int max_depth = 32;
  int64_t max_repeat = 128;  // a count: XGrammar unrolls up to so many
};

class Pattern {
 public:
  // Throws mdi::Error(where, ...) with the position: for what is not regular (look-around, back-references, \b), for
  // syntax, and for limits.
  static Pattern parse(std::string_view pattern, const std::string& where, PatternLimits limits = {});

  // How one character of the text is written: a sub-set of what stands for it, never() if nothing does.
  class Alphabet {
   public:
    virtual ~Alphabet() = default;
    virtual GrammarRules::Expr one_of(GrammarRules& rules, const CodePoints& set) const = 0;
    // Any character of a text of bounded length.
    virtual GrammarRules::Expr counted(GrammarRules& rules) const = 0;
  };

  // Texts that match as a whole.
  GrammarRules::Expr whole(GrammarRules& rules, const Alphabet& alphabet) const;
  // Texts in which it is found: JSON Schema's meaning of `pattern`.
  GrammarRules::Expr found(GrammarRules& rules, const Alphabet& alphabet) const;

 private:
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  struct Node {
    Kind kind;
    CodePoints set = {};
    std::vector<int32_t> parts = {};
    int64_t min = 0, max = 0;
  };
  friend class PatternParser;
  GrammarRules::Expr write(int32_t node, GrammarRules& rules, const Alphabet& alphabet) const;
  GrammarRules::Expr write_outermost(GrammarRules& rules, const Alphabet& alphabet, bool anywhere) const;

  std::string where_;
  std::vector<Node> nodes_;
  int32_t root_ = 0;
};

}  // namespace mdi
