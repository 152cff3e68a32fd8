// Masks by prefix: matchers that stand where the samples of a request stand.
#include <algorithm>
#include <ctime>
#include <list>
#include <mutex>
#include <random>
#include <utility>

#include "core/error.h"
#include "grammar/compiled_grammar.h"
#include "grammar/grammar.h"

namespace mdi {
namespace {

// Taking back more than a draft is the sign of another sample, which gets a matcher of its own.
constexpr size_t kMaxTakenBack = 8;
constexpr size_t kMaxPaths = 16;  // RequestLimits::max_n

void set_bit(std::span<uint32_t> bits, int32_t token) {
  const auto index = static_cast<size_t>(token);
  if (index / 32 < bits.size()) bits[index / 32] |= 1U << (index % 32);
}

class MaskByPrefix {
 public:
  MaskByPrefix(std::shared_ptr<const CompiledGrammar> grammar, bool reasoning, bool to_the_end)
      : grammar_(std::move(grammar)), reasoning_(reasoning && grammar_->think_end() >= 0), to_the_end_(to_the_end) {}

  bool operator()(std::span<const int32_t> generated, std::span<uint32_t> bits) {
    const std::lock_guard lock(mutex_);
    if (grammar_->too_slow()) throw TooSlow(grammar_->source());
    try {
      return make(generated, bits);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      throw Error(grammar_->source(), std::string("cannot be followed any further: ") + e.what());
    }
  }

 private:
  bool make(std::span<const int32_t> generated, std::span<uint32_t> bits) {
    if (reasoning_) {
      const auto end = std::find(generated.begin(), generated.end(), grammar_->think_end());
      if (end == generated.end()) return in_reasoning(bits);
      generated = generated.subspan(static_cast<size_t>(end - generated.begin()) + 1);
    }
    if (generated.empty()) {
      std::copy_n(grammar_->first().begin(), std::min(bits.size(), grammar_->first().size()), bits.begin());
    } else {
      const double before = thread_seconds();
      Path& path = follow(generated);
      if (path.tokens.size() < generated.size()) {
        // Never chosen under this mask: a draft's token that was not checked. What follows it is not used.
        set_bit(bits, grammar_->eos());
        return true;
      }
      path.matcher.allowed(bits);
      grammar_->charge(thread_seconds() - before);
    }
    if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; })) {
      throw Error(grammar_->source(), "no token of the vocabulary can follow what was generated");
    }
    if (to_the_end_) leave_end_last(bits);
    return true;
  }

  // The end goes where anything else may come.
  void leave_end_last(std::span<uint32_t> bits) const {
    uint32_t& word = bits[static_cast<size_t>(grammar_->eos()) / 32];
    const uint32_t end = 1U << (grammar_->eos() % 32);
    const uint32_t before = std::exchange(word, word & ~end);
    if (std::all_of(bits.begin(), bits.end(), [](uint32_t w) { return w == 0; })) word = before;
  }

  struct Path {
    Matcher matcher;
    std::vector<int32_t> tokens;  // accepted
  };

  bool in_reasoning(std::span<uint32_t> bits) const {
    if (grammar_->may_be_empty() && !to_the_end_) return false;
    for (int64_t i = 0; i < grammar_->tokens(); ++i) set_bit(bits, static_cast<int32_t>(i));
    bits[static_cast<size_t>(grammar_->eos()) / 32] &= ~(1U << (grammar_->eos() % 32));
    return true;
  }

  // The path that stands behind as many of the tokens as the grammar allows; the most recently used comes first.
  Path& follow(std::span<const int32_t> tokens) {
    auto best = paths_.end();
    size_t best_shared = 0, best_cost = SIZE_MAX;
    for (auto path = paths_.begin(); path != paths_.end(); ++path) {
      const auto differs = std::mismatch(path->tokens.begin(), path->tokens.end(), tokens.begin(), tokens.end());
      const auto shared = static_cast<size_t>(differs.first - path->tokens.begin());
      const size_t cost = (path->tokens.size() - shared) + (tokens.size() - shared);
      if (cost < best_cost) {
        best = path;
        best_shared = shared;
        best_cost = cost;
      }
      if (cost <= 1) break;
    }
    const bool other_sample = best == paths_.end() || best->tokens.size() - best_shared > kMaxTakenBack;
    if (other_sample) {
      if (best == paths_.end() || best_shared == 0) {
        best_shared = 0;
        paths_.push_front({grammar_->begin(), {}});
      } else {
        paths_.push_front({best->matcher.fork(), best->tokens});
      }
      if (paths_.size() > kMaxPaths) paths_.pop_back();
    } else {
      paths_.splice(paths_.begin(), paths_, best);
    }
    Path& path = paths_.front();
    path.matcher.rollback(static_cast<int64_t>(path.tokens.size() - best_shared));
    path.tokens.resize(best_shared);
    for (const int32_t token : tokens.subspan(best_shared)) {
      if (!path.matcher.accept(token)) break;
      path.tokens.push_back(token);
    }
    return path;
  }

  std::shared_ptr<const CompiledGrammar> grammar_;
  bool reasoning_, to_the_end_;
  std::mutex mutex_;
  std::list<Path> paths_;
};

}  // namespace

GrammarMask make_mask(std::shared_ptr<const CompiledGrammar> grammar, bool reasoning, bool to_the_end) {
  auto mask = std::make_shared<MaskByPrefix>(std::move(grammar), reasoning, to_the_end);
  return [mask](std::span<const int32_t> generated, std::span<uint32_t> bits) { return (*mask)(generated, bits); };
}

bool masks_are_slow(const CompiledGrammar& grammar) { return grammar.slow(); }

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

CompiledGrammar::CompiledGrammar(const MatcherVocabulary& vocabulary, const std::string& ebnf, std::string source,
                                 int64_t tokens, int64_t vocab, int32_t eos, int32_t think_end,
                                 const GrammarLimits& limits)
    : grammar_(vocabulary, ebnf),
      source_(std::move(source)),
      tokens_(tokens),
      vocab_(vocab),
      eos_(eos),
      think_end_(think_end),
      max_mask_seconds_(limits.max_mask_seconds),
      back_mask_seconds_(limits.back_mask_seconds),
      left_(limits.max_mask_seconds) {
  first_.resize(static_cast<size_t>(words()));
  begin().allowed(first_);
  may_be_empty_ = (first_[static_cast<size_t>(eos) / 32] >> (eos % 32) & 1U) != 0;
  try_masks();
}

void CompiledGrammar::note_mask(double seconds) const {
  constexpr double kSlow = 2e-3;  // many such masks are a step's time; first visits of a place take 10 times as long
  constexpr int32_t kMasks = 32;  // one slow mask announces others
  if (seconds > kSlow) {
    slow_for_ = kMasks;
  } else if (slow_for_ > 0) {
    --slow_for_;
  }
}

void CompiledGrammar::charge(double seconds) const {
  note_mask(seconds);
  const std::lock_guard lock(mutex_);
  left_ = std::min(max_mask_seconds_, left_ + back_mask_seconds_) - seconds;
  if (left_ < 0) too_slow_ = true;
}

void CompiledGrammar::try_masks() {
  constexpr int kWalks = 3, kSteps = 16;
  constexpr double kSeconds = 0.2;  // together: what is cheap is tried whole, what is dear needs no more
  const double start = thread_seconds();
  std::mt19937 random(1);  // always the same, so that a grammar is accepted or refused alike
  std::vector<uint32_t> bits(static_cast<size_t>(words()), 0);
  for (int walk = 0; walk < kWalks; ++walk) {
    Matcher matcher = begin();
    for (int i = 0; i < kSteps && thread_seconds() - start < kSeconds; ++i) {
      const double before = thread_seconds();
      matcher.allowed(bits);
      const double seconds = thread_seconds() - before;
      note_mask(seconds);
      if (seconds > max_mask_seconds_) {
        throw TooSlow("grammar");
      }
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < tokens_; ++id) {
        if (id != eos_ && (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0) allowed.push_back(id);
      }
      if (allowed.empty() || !matcher.accept(allowed[random() % allowed.size()])) break;
    }
  }
}

}  // namespace mdi
