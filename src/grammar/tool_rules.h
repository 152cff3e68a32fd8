// What a whole answer may be: content, and tool calls as the chat format writes them (spec chat-format.md section 5).
#pragma once

#include <string>

#include "grammar/grammar.h"
#include "grammar/rules.h"

namespace mdi {

struct AnswerGrammar {
  std::string ebnf;  // XGrammar's
  int64_t cost = 0;  // states, by the count of GrammarRules
};

// The part of the request that says most of what the answer is: "response_format", "regex", "choice" or "tools". For
// errors that are about the whole.
std::string answer_source(const GrammarSpec& spec);

// The grammar of the spec. dsml: the control token of the tool-call tags, -1 if the tokenizer has
// none. Throws mdi::Error whose `where` is the part of the request at fault.
AnswerGrammar answer_grammar(const GrammarSpec& spec, int32_t dsml, const GrammarLimits& limits);

}  // namespace mdi
