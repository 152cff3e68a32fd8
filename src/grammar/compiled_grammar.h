// What GrammarCompiler makes and make_mask reads.
#pragma once

#include <cstdint>

#include "grammar/xgrammar_core.h"

namespace mdi {

// Of the calling thread alone, so that what else the machine does does not count.
double thread_seconds();

class CompiledGrammar {
 public:
  // Tries masks along some answers, which also leaves the first places' masks ready. Throws mdi::Error for what
  // XGrammar refuses, and when a mask takes longer than max_mask_seconds.
  CompiledGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf, int64_t tokens, int64_t vocab,
                  int32_t eos, int32_t think_end, double max_mask_seconds);

  Matcher begin() const { return Matcher(grammar_); }
  size_t bytes() const { return grammar_.bytes(); }

  int64_t tokens() const { return tokens_; }  // of the tokenizer
  int64_t words() const { return (vocab_ + 31) / 32; }
  int32_t eos() const { return eos_; }
  int32_t think_end() const { return think_end_; }  // -1: the tokenizer has none
  double max_mask_seconds() const { return max_mask_seconds_; }
  bool may_be_empty() const { return may_be_empty_; }

 private:
  MatcherGrammar grammar_;
  int64_t tokens_, vocab_;
  int32_t eos_, think_end_;
  double max_mask_seconds_;
  bool may_be_empty_ = false;

  void try_masks();
};

}  // namespace mdi
