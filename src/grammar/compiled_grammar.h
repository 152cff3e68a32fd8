// What GrammarCompiler makes and make_mask reads.
#pragma once

#include <cstdint>

#include "grammar/xgrammar_core.h"

namespace mdi {

class CompiledGrammar {
 public:
  CompiledGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf, int64_t tokens, int64_t vocab,
                  int32_t eos, int32_t think_end);

  Matcher begin() const { return Matcher(grammar_); }
  size_t bytes() const { return grammar_.bytes(); }

  int64_t tokens() const { return tokens_; }  // of the tokenizer
  int64_t words() const { return (vocab_ + 31) / 32; }
  int32_t eos() const { return eos_; }
  int32_t think_end() const { return think_end_; }  // -1: the tokenizer has none
  bool may_be_empty() const { return may_be_empty_; }

 private:
  MatcherGrammar grammar_;
  int64_t tokens_, vocab_;
  int32_t eos_, think_end_;
  bool may_be_empty_ = false;
};

}  // namespace mdi
