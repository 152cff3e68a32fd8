#include "grammar/xgrammar_core.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>

#include "core/error.h"

// XGrammar is built to leave its messages to us (cmake/xgrammar.cmake).
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*lineno*/, const std::string& message) {
  throw std::runtime_error(message);
}
// Warnings say what of a schema is passed over. We give it no schemas, and what they quote is a client's.
void LogMessageImpl(const std::string& /*file*/, int /*lineno*/, int /*level*/, const std::string& /*message*/) {}
}  // namespace xgrammar

namespace mdi {

struct MatcherVocabulary::State {
  xgrammar::TokenizerInfo info;
  int64_t vocab;
  int32_t eos;
};

MatcherVocabulary::MatcherVocabulary(const std::vector<std::string>& bytes, int64_t vocab, int32_t eos)
    : state_(std::make_shared<const State>(State{
          xgrammar::TokenizerInfo(bytes, xgrammar::VocabType::RAW, static_cast<int>(vocab), std::vector<int32_t>{eos}),
          vocab, eos})) {}

struct MatcherGrammar::State {
  MatcherVocabulary vocabulary;
  xgrammar::CompiledGrammar compiled;
};

namespace {
xgrammar::CompiledGrammar compile(const MatcherVocabulary& vocabulary, const std::string& ebnf) {
  try {
    // Without its own cache, whose size has no bound here, and on this thread.
    xgrammar::GrammarCompiler compiler(vocabulary.state().info, 1, false, -1, true);
    return compiler.CompileGrammar(ebnf, "root");
  } catch (const std::runtime_error& e) {
    throw Error("grammar", e.what());
  }
}
}  // namespace

MatcherGrammar::MatcherGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf)
    : state_(std::make_shared<const State>(State{vocabulary, compile(vocabulary, ebnf)})) {}

size_t MatcherGrammar::bytes() const { return state_->compiled.MemorySizeBytes(); }

struct Matcher::State {
  MatcherGrammar grammar;
  xgrammar::GrammarMatcher matcher;
};

Matcher::Matcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
Matcher::Matcher(const MatcherGrammar& grammar)
    : state_(new State{grammar, xgrammar::GrammarMatcher(grammar.state().compiled)}) {}
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

Matcher Matcher::fork() const {
  return Matcher(std::unique_ptr<State>(new State{state_->grammar, state_->matcher.Fork()}));
}

bool Matcher::accept(int32_t token) {
  const MatcherVocabulary::State& vocabulary = state_->grammar.state().vocabulary.state();
  if (token < 0 || token >= vocabulary.vocab || state_->matcher.IsTerminated()) return false;
  return state_->matcher.AcceptToken(token);
}

void Matcher::rollback(int64_t tokens) {
  if (tokens > 0) state_->matcher.Rollback(static_cast<int>(tokens));
}

void Matcher::allowed(std::span<uint32_t> bits) {
  std::fill(bits.begin(), bits.end(), 0);
  const MatcherVocabulary::State& vocabulary = state_->grammar.state().vocabulary.state();
  const auto words = static_cast<size_t>((vocabulary.vocab + 31) / 32);
  if (bits.size() < words || state_->matcher.IsTerminated()) return;
  int64_t shape[] = {static_cast<int64_t>(words)};
  DLTensor tensor{.data = bits.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = shape,
                  .strides = nullptr,
                  .byte_offset = 0};
  state_->matcher.FillNextTokenBitmask(&tensor);
  // Not all of the last word's bits are tokens.
  const int64_t odd = vocabulary.vocab % 32;
  if (odd != 0) bits[words - 1] &= (1U << odd) - 1;
}

}  // namespace mdi
