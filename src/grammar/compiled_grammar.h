// What GrammarCompiler makes and make_mask reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "grammar/grammar.h"
#include "grammar/xgrammar_core.h"

namespace mdi {

// Of the calling thread alone, so that what else the machine does does not count.
double thread_seconds();

// What a request or a compilation ends with when masks take too long.
struct TooSlow : Error {
  explicit TooSlow(std::string_view where)
      : Error(where, "too ambiguous: finding the tokens that may come next takes too long") {}
};

class CompiledGrammar {
 public:
  // Tries masks along some answers, which also leaves the first places' masks ready. source: the part of the request
  // that it was made of. Throws mdi::Error for what XGrammar refuses, and when a mask takes longer than
  // limits.max_mask_seconds.
  CompiledGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf, std::string source, int64_t tokens,
                  int64_t vocab, int32_t eos, int32_t think_end, const GrammarLimits& limits);

  Matcher begin() const { return Matcher(grammar_); }
  size_t bytes() const { return grammar_.bytes(); }

  const std::string& source() const { return source_; }
  int64_t tokens() const { return tokens_; }  // of the tokenizer
  int64_t words() const { return (vocab_ + 31) / 32; }
  int32_t eos() const { return eos_; }
  int32_t think_end() const { return think_end_; }  // -1: the tokenizer has none
  bool may_be_empty() const { return may_be_empty_; }
  std::span<const uint32_t> first() const { return first_; }  // the mask of the answer's beginning

  // What a mask took, for whichever request. From any thread.
  void charge(double seconds) const;
  bool slow() const { return slow_for_ > 0; }
  bool too_slow() const { return too_slow_; }  // the time is used up, and stays so

 private:
  MatcherGrammar grammar_;
  std::string source_;
  int64_t tokens_, vocab_;
  int32_t eos_, think_end_;
  double max_mask_seconds_, back_mask_seconds_;
  bool may_be_empty_ = false;
  std::vector<uint32_t> first_;
  mutable std::atomic<int32_t> slow_for_{0};  // masks
  mutable std::atomic<bool> too_slow_{false};
  mutable std::mutex mutex_;
  mutable double left_;  // seconds

  void note_mask(double seconds) const;

  void try_masks();
};

}  // namespace mdi
