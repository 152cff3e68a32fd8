// XGrammar behind plain types: the one place that includes its headers is xgrammar_core.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mdi {

// Immutable; any number of threads may use it.
class MatcherVocabulary {
 public:
  // bytes[id] is what token id stands for, empty for control tokens. Ids from bytes.size() to vocab - 1 never match.
  MatcherVocabulary(const std::vector<std::string>& bytes, int64_t vocab, int32_t eos);

  struct State;
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

// A grammar for a vocabulary. Masks are worked out when a state is first met, and kept; any number of threads may match
// against one of these.
class MatcherGrammar {
 public:
  // Throws mdi::Error("grammar", ...) for what XGrammar refuses.
  MatcherGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf);

  size_t bytes() const;  // what it takes by now, roughly

  struct State;
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

// Where a text is in a grammar. One thread at a time.
class Matcher {
 public:
  explicit Matcher(const MatcherGrammar& grammar);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  Matcher fork() const;
  // False, and nothing changes, when the token may not come here.
  bool accept(int32_t token);
  void rollback(int64_t tokens);
  // bits: one word for 32 tokens of the vocabulary; all are written. The end-of-sentence token is among them when the
  // text may end here.
  void allowed(std::span<uint32_t> bits);

 private:
  struct State;
  explicit Matcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mdi
