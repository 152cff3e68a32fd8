// Bits per byte of teacher-forced tokens, on the golden tiny checkpoint.
#include "engine/eval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../model/tiny_model.h"
#include "core/error.h"

namespace mdi {
namespace {

using testing::load_tiny_model;

std::vector<int32_t> some_tokens(int32_t count, int32_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = (i * 7 + (i * i) % 31) % vocab;
  return tokens;
}

struct Tiny : ::testing::Test {
  std::unique_ptr<Context> context = make_cpu_context(1);
  Model model = load_tiny_model();
  std::vector<int32_t> tokens = some_tokens(101, model.config().vocab_size);
  std::vector<int32_t> bytes = std::vector<int32_t>(static_cast<size_t>(model.config().vocab_size), 3);
  EvalResult run(const EvalOptions& options) { return evaluate(*context, model, tokens, bytes, options); }
};

// The slow way: one prefill for each token, from the logits of its last row.
double slow_bits(Context& context, const Model& model, std::span<const int32_t> tokens, size_t first) {
  double bits = 0;
  for (size_t n = first; n < tokens.size(); ++n) {
    StatePools state = make_state(context, model, 1, blocks_for(static_cast<int64_t>(tokens.size())));
    StepBuffers buffers(context, model, static_cast<int32_t>(n), 1, 1, 1);
    const std::vector<int32_t> blocks = {0};
    const std::vector<int32_t> sampled = {static_cast<int32_t>(n) - 1};
    const StepSequence sequence{.tokens = tokens.subspan(0, n), .dead = {}, .blocks = blocks, .sample_tokens = sampled};
    const Step step = make_step(model, state, {&sequence, 1});
    forward(context, model, state, step, buffers);
    const auto* row = buffers.logits.as<float>();
    double sum = 0;
    for (int32_t v = 0; v < model.config().vocab_size; ++v) sum += std::exp(static_cast<double>(row[v]));
    bits += (std::log(sum) - static_cast<double>(row[tokens[n]])) / std::log(2.0);
  }
  return bits;
}

TEST_F(Tiny, ScoresEachTokenOnceGivenTheOnesBefore) {
  tokens.resize(24);
  const EvalResult r = run({.context = 64, .chunk = 5});
  EXPECT_EQ(r.tokens, 23);
  EXPECT_EQ(r.bytes, 23 * 3);
  EXPECT_NEAR(r.bits, slow_bits(*context, model, tokens, 1), 1e-3);
}

TEST_F(Tiny, DoesNotDependOnTheChunk) {
  const double bits = run({.context = 40, .chunk = 40}).bits;
  EXPECT_EQ(run({.context = 40, .chunk = 1}).bits, bits);
  EXPECT_EQ(run({.context = 40, .chunk = 7}).bits, bits);
}

TEST_F(Tiny, WindowsStartAnew) {
  const EvalResult whole = run({.context = 50, .chunk = 16});
  EXPECT_EQ(whole.tokens, 100);
  const std::vector<int32_t> all = tokens;
  tokens = {all.begin(), all.begin() + 51};
  const double first = run({.context = 50, .chunk = 16}).bits;
  tokens = {all.begin() + 50, all.end()};
  EXPECT_NEAR(first + run({.context = 50, .chunk = 16}).bits, whole.bits, 1e-9);
}

TEST_F(Tiny, APrefixIsReadAndNotScored) {
  const EvalResult r = run({.context = 40, .prefix = 30, .chunk = 16});
  EXPECT_EQ(r.tokens, 70);  // all but the first 30
  tokens.resize(36);
  const EvalResult one = run({.context = 40, .prefix = 30, .chunk = 16});
  EXPECT_EQ(one.tokens, 5);
  EXPECT_NEAR(one.bits, slow_bits(*context, model, tokens, 31), 1e-3);
}

// Dropped rows change what the scored tokens see; a prefix not longer than R has none.
TEST_F(Tiny, ReplayCostsSomethingWhereRowsAreDropped) {
  const EvalOptions exact{.context = 100, .prefix = 80, .chunk = 16};
  EvalOptions replay = exact;
  replay.replay.rows = 20;
  const double bits = run(exact).bits;
  const double replayed = run(replay).bits;
  EXPECT_NE(replayed, bits);
  EXPECT_NEAR(replayed, bits, 0.2 * bits);
  replay.chunk = 100;
  EXPECT_EQ(run(replay).bits, replayed);
  replay.replay.form = ReplayForm::kFromLastSource;
  EXPECT_EQ(run(replay).bits, replayed);
}

TEST_F(Tiny, RefusesWhatItCannotScore) {
  EXPECT_THROW(run({.context = 1}), Error);
  EXPECT_THROW(run({.context = 64, .prefix = 64}), Error);
  EXPECT_THROW(run({.context = 64, .chunk = 0}), Error);
  EXPECT_THROW(run({.context = 64, .prefix = 20, .replay = {.rows = 20}}), Error);
  bytes.pop_back();
  EXPECT_THROW(run({.context = 64}), Error);
  bytes.push_back(3);
  tokens.resize(1);
  EXPECT_THROW(run({.context = 64}), Error);
}

}  // namespace
}  // namespace mdi
