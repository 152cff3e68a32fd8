// Faults of speculation and grammar in a whole engine.
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::listening;
using testing::listening_ops;
using testing::request;
using testing::Served;
using testing::some_tokens;
using testing::tiny_model;

EngineOptions options(bool draft) {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 600;
  o.max_rows = 128;
  o.draft = draft;
  o.draft_always = draft;
  return o;
}

// Only even tokens, and every fifth one must be 7: a function of what was generated and of nothing else.
bool even_and_sevens(std::span<const int32_t> generated, TokenBits bits) {
  if (generated.size() % 5 == 4) {
    bits[0] = 1u << 7;
    return true;
  }
  for (uint32_t& word : bits) word = 0x55555555u;
  return true;
}

TEST(SpeculationScenario, GrammarStateDoesNotAdvanceOnRejectedDrafts) {
  std::vector<std::vector<int32_t>> both;
  for (const bool draft : {false, true}) {
    Served served(options(draft));
    Request r = request(some_tokens(60, 1), 40);
    std::set<std::vector<int32_t>> asked;
    size_t times = 0;
    r.allowed = [&asked, &times](std::span<const int32_t> generated, TokenBits bits) {
      asked.emplace(generated.begin(), generated.end());
      ++times;
      return even_and_sevens(generated, bits);
    };
    const RequestId id = served.submit(std::move(r));
    served.engine->run();
    const auto& tokens = served.answer(id).tokens;
    ASSERT_EQ(tokens.size(), 40u);
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_TRUE(i % 5 == 4 ? tokens[i] == 7 : tokens[i] % 2 == 0) << i << ": " << tokens[i];
      EXPECT_EQ(asked.count({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i)}), 1u);
    }
    both.push_back(tokens);
    if (draft) {
      EXPECT_GT(served.engine->metrics().draft_calls, 0);
      // A place is asked for once: where a proposal is drawn or where it is verified, not in both. Proposals that are
      // not verified come again.
      EXPECT_LT(times, asked.size() + static_cast<size_t>(tiny_model().config().dspark_block_size));
    }
  }
  EXPECT_EQ(both[0], both[1]);
}

TEST(SpeculationScenario, AGrammarThatAllowsNothingEndsItsRequestAndNobodyElses) {
  Served served(options(true));
  Request r = request(some_tokens(20, 1), 40);
  r.allowed = [](std::span<const int32_t> generated, TokenBits) { return generated.size() >= 6; };
  const RequestId stuck = served.submit(std::move(r));
  const RequestId fine = served.submit(request(some_tokens(20, 2), 10));
  served.engine->run();
  EXPECT_EQ(served.answer(stuck).end, EndReason::kInvalid);
  EXPECT_EQ(served.answer(stuck).tokens.size(), 6u);
  EXPECT_EQ(served.answer(fine).tokens, alone(some_tokens(20, 2), 10));
  served.expect_nothing_held();
}

TEST(SpeculationScenario, ADraftWidthOtherThanTheTrainedBlockIsRefusedAtStart) {
  EngineOptions o = options(true);
  o.draft_block = tiny_model().config().dspark_block_size;
  EXPECT_NO_THROW(Served served(o));
  o.draft_block = 7;
  try {
    Served served(o);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("trained for 5 tokens, found 7"), std::string::npos) << e.what();
  }
}

TEST(SpeculationScenario, AcceptancePerPositionIsAMetric) {
  Served served(options(true));
  for (uint32_t i = 0; i < 6; ++i) served.submit(request(some_tokens(50 + i, i), 60));
  served.engine->run();
  const EngineMetrics m = served.engine->metrics();
  ASSERT_EQ(m.proposed.size(), 5u);
  int64_t accepted = 0;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_LE(m.accepted[i], m.proposed[i]);
    if (i > 0) {
      EXPECT_LE(m.accepted[i], m.accepted[i - 1]) << "a place after a rejected one was accepted";
    }
    accepted += m.accepted[i];
  }
  EXPECT_GT(m.accepted[0], 0);
  EXPECT_GT(m.proposed[4], 0);
  EXPECT_EQ(m.generated_tokens, 6 * 60);
  EXPECT_GT(accepted, 0);
  EXPECT_LE(accepted, m.generated_tokens);
}

// Cancelled, ended and preempted while blocks of drafts are in flight; slots and blocks are used again at once.
TEST(SpeculationScenario, StateThatIsFreedWhileADraftIsInFlightIsNobodyElsesProblem) {
  EngineOptions o = options(true);
  o.blocks = 8;
  o.snapshot_min_tokens = 1;
  o.preempt_every = 5;
  Served served(o);
  std::vector<RequestId> cancelled, kept;
  for (uint32_t i = 0; i < 16; ++i) {
    Request r = request(some_tokens(30 + 9 * i, i), 25);
    if (i % 2 == 0) {
      cancelled.push_back(served.submit(std::move(r)));
    } else {
      r.stop_ids = {};
      kept.push_back(served.submit(std::move(r)));
    }
  }
  for (size_t next = 0; served.engine->step();) {
    if (next < cancelled.size() && served.answer(cancelled[next]).tokens.size() > 3 + next) {
      served.engine->cancel(cancelled[next++]);
    }
  }
  for (uint32_t i = 0; i < kept.size(); ++i) {
    const uint32_t seed = 2 * i + 1;
    EXPECT_EQ(served.answer(kept[i]).tokens, alone(some_tokens(30 + 9 * seed, seed), 25)) << i;
  }
  served.expect_nothing_held();
}

TEST(SpeculationScenario, AStopInsideAnAcceptedBlockEndsTheAnswerThere) {
  const auto prompt = some_tokens(45, 9);
  const auto plain = alone(prompt, 60);
  for (size_t at : {1u, 2u, 3u, 5u, 8u, 13u, 21u}) {
    Served served(options(true));
    Request r = request(prompt, 60);
    r.stop_ids = {plain[at]};
    const RequestId id = served.submit(std::move(r));
    served.engine->run();
    const auto first = std::find(plain.begin(), plain.end(), plain[at]) - plain.begin();
    EXPECT_EQ(served.answer(id).tokens, testing::slice(plain, 0, first + 1));
    EXPECT_EQ(served.answer(id).end, EndReason::kStop);
    // The next turn goes on from the answer's end as a cold run does.
    auto next = prompt;
    next.insert(next.end(), plain.begin(), plain.begin() + first + 1);
    const auto more = some_tokens(70, 3);
    next.insert(next.end(), more.begin(), more.end());
    const RequestId turn = served.submit(request(next, 10));
    served.engine->run();
    EXPECT_EQ(served.answer(turn).tokens, alone(next, 10)) << at;
    served.expect_nothing_held();
  }
}

// Penalties look at drafted tokens as they would at generated ones.
TEST(SpeculationScenario, PenaltiesGiveTheSameTokensWithAndWithoutDrafts) {
  const SamplingParams penalties{
      .temperature = 0, .presence_penalty = 0.5f, .frequency_penalty = 0.3f, .repetition_penalty = 1.2f};
  std::vector<std::vector<int32_t>> both;
  for (const bool draft : {false, true}) {
    Served served(options(draft));
    const RequestId id = served.submit(request(some_tokens(45, 9), 60, penalties));
    served.engine->run();
    both.push_back(served.answer(id).tokens);
  }
  EXPECT_EQ(both[0], both[1]);
  EXPECT_NE(both[0], alone(some_tokens(45, 9), 60)) << "the penalties changed nothing";
}

TEST(SpeculationScenario, SampledTextWithDraftsIsTheSameForTheSameSeed) {
  const auto run = [](uint64_t seed) {
    Served served(options(true));
    const RequestId id = served.submit(request(some_tokens(45, 9), 60, {.temperature = 0.8f, .seed = seed}));
    served.engine->run();
    return served.answer(id).tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

// Drafting that is a loss is tried again every so many steps, also where each step starts before the host has seen the
// tokens of the one before. On this clock a draft call takes a minute and everything else some microseconds.
TEST(SpeculationScenario, DraftingThatWasALossIsTriedAgainAlsoWhereStepsChain) {
  double time = 0;
  EngineOptions o = options(true);
  o.draft_always = false;
  o.stall_limit = 0;
  o.clock = [&time] { return time += 1e-6; };
  static const std::unique_ptr<CpuContext> plain = make_cpu_context(1);
  static double* now = nullptr;
  now = &time;
  Ops ops = *plain->ops;
  ops.markov = [](Context& c, const MarkovArgs& args) {
    *now += 60;
    plain->ops->markov(c, args);
  };
  Served served(o, nullptr, &ops);
  const RequestId id = served.submit(request(some_tokens(20, 1), 560));
  served.engine->run();
  EXPECT_EQ(served.answer(id).tokens, alone(some_tokens(20, 1), 560));
  const EngineMetrics m = served.engine->metrics();
  EXPECT_EQ(m.draft_calls, 2);                         // behind 256 steps without each
  EXPECT_EQ(m.steps_drafts_off, m.steps - 1 - 2 - 1);  // all but the prompt's, those two, and the last token's
  EXPECT_GT(m.steps_chained, 500);
  served.expect_nothing_held();
}

}  // namespace
}  // namespace mdi
