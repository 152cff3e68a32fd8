// Stories about the cache, one for each fault that users of such engines meet ("Cache and replay"): requests share what
// they have in common, and nobody can tell from an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "../pace.h"
#include "cache_stories.h"
#include "core/error.h"

namespace mdi {
namespace {

using namespace testing::stories;
using testing::alone;
using testing::Answer;
using testing::request;
using testing::Served;
using testing::some_tokens;

// faults: "A prefix hit restores the compressed rows but not the window state: fluent, wrong output. Restored state is
// compared with a cold run, logits included."
TEST(CacheFaults, APrefixHitIsAColdRunLogitsIncluded) {
  for (const bool draft : {false, true}) {
    EngineOptions o = options();
    o.draft = o.draft_always = draft;
    Served warm(o);
    std::vector<int32_t> conversation;
    for (uint32_t turn = 0; turn < 4; ++turn) {
      // All of the last turn but its last token, which was not run.
      const auto known = static_cast<int32_t>(conversation.size()) - 1;
      conversation = join(conversation, some_tokens(70 + 31 * turn, turn));
      const Answer found = answer_of(warm, telling(conversation));
      expect_same(found, cold_answer(telling(conversation), o), "turn " + std::to_string(turn));
      EXPECT_EQ(found.usage.cached_tokens, std::max(known, 0)) << "turn " << turn;
      conversation = join(conversation, found.tokens);
    }
    EXPECT_EQ(warm.engine->metrics().hits, 3);
    warm.expect_nothing_held();
  }
}

TEST(CacheFaults, TheVerySamePromptRunsOneToken) {
  Served warm(options());
  const auto prompt = some_tokens(300, 5);
  const Answer first = answer_of(warm, telling(prompt));
  const Answer second = answer_of(warm, telling(prompt));
  EXPECT_EQ(first.usage.cached_tokens, 0);
  EXPECT_EQ(second.usage.cached_tokens, 299);
  expect_same(second, first, "again");
}

TEST(CacheFaults, AnOlderTurnOfAConversationIsBranchedFrom) {
  Served warm(options());
  const auto opening = some_tokens(150, 6);
  const Answer answer = answer_of(warm, telling(opening));
  const auto first_turn = join(opening, answer.tokens);
  const Answer left = answer_of(warm, telling(join(first_turn, some_tokens(80, 7))));
  const Answer right = answer_of(warm, telling(join(first_turn, some_tokens(80, 8))));
  EXPECT_GT(left.usage.cached_tokens, 150);
  EXPECT_GT(right.usage.cached_tokens, 150);
  expect_same(right, cold_answer(telling(join(first_turn, some_tokens(80, 8)))), "the other branch");
}

// Nobody takes a snapshot at the end of a system prompt; the second request with it does, where the two part.
TEST(CacheFaults, TheThirdRequestWithOneSystemPromptFindsIt) {
  Served warm(options());
  const auto system = some_tokens(256 + 20, 9);
  const auto asks = [&](uint32_t seed) { return telling(join(system, some_tokens(100, seed))); };
  EXPECT_EQ(answer_of(warm, asks(1)).usage.cached_tokens, 0);
  EXPECT_EQ(answer_of(warm, asks(2)).usage.cached_tokens, 0);
  const Answer third = answer_of(warm, asks(3));
  EXPECT_EQ(third.usage.cached_tokens, 256);
  expect_same(third, cold_answer(asks(3)), "the third");
}

// faults: "A prefix is keyed by tokens alone though an image or a tenant differs."
TEST(CacheFaults, AnotherTenantWithTheSameTokensRunsCold) {
  Served warm(options());
  const auto of = [](const std::string& tenant) {
    Request r = telling(some_tokens(200, 10));
    r.salt = tenant;
    return r;
  };
  answer_of(warm, of("a"));
  EXPECT_EQ(answer_of(warm, of("b")).usage.cached_tokens, 0);
  EXPECT_EQ(answer_of(warm, of("")).usage.cached_tokens, 0);
  EXPECT_EQ(answer_of(warm, of("a")).usage.cached_tokens, 199);
}

const Model& vision_model() {
  static const Model model = [] {
    const auto dir = testing::long_checkpoint("tiny-vision");
    Model loaded = testing::load_checkpoint(dir);
    testing::fs::remove_all(dir);
    return loaded;
  }();
  return model;
}

TEST(CacheFaults, AnotherImageUnderTheSameTokensRunsCold) {
  const Model& model = vision_model();
  const auto dim = static_cast<size_t>(model.config().dim);
  auto context = make_cpu_context(1);
  const auto engine = [&](int32_t snapshots) {
    EngineOptions o = options();
    o.snapshots = snapshots;
    return std::make_unique<Engine>(*context, model, nullptr, o);
  };
  constexpr size_t kStart = 20, kSpan = 30, kTokens = 150;
  const auto shows = [&](const Engine& e, uint32_t picture) {
    Request r = telling(some_tokens(kTokens, 11));
    for (int32_t& token : r.prompt) token %= model.config().vocab_size;
    r.images.dead.assign(kTokens, 0);
    for (size_t i = kStart; i < kStart + kSpan; ++i) r.prompt[i] = 3, r.images.dead[i] = 1;
    for (const int32_t v : some_tokens(static_cast<int64_t>(kSpan * dim), picture)) {
      r.images.rows.push_back(to_bf16(static_cast<float>(v - 250) / 300.0f));
    }
    r.image_identities = {
        {.start = kStart, .count = kSpan, .digest = e.hasher().digest(std::as_bytes(std::span(r.images.rows)))}};
    return r;
  };
  const auto answer_from = [&](Engine& e, Request r) {
    Answer answer;
    r.on_event = [&answer](const Event& event) {
      for (const GeneratedToken& token : event.tokens) {
        answer.tokens.push_back(token.id);
        answer.logprobs.push_back(token.logprobs);
      }
      answer.usage = event.usage;
      answer.end = event.end;
    };
    EXPECT_TRUE(e.submit(std::move(r)).has_value());
    e.run();
    return answer;
  };
  const auto warm = engine(16);
  const Answer cat = answer_from(*warm, shows(*warm, 1));
  const Answer dog = answer_from(*warm, shows(*warm, 2));
  EXPECT_EQ(dog.usage.cached_tokens, 0);
  const auto cold = engine(0);
  expect_same(dog, answer_from(*cold, shows(*cold, 2)), "the second image");
  const Answer again = answer_from(*warm, shows(*warm, 1));
  EXPECT_EQ(again.usage.cached_tokens, static_cast<int32_t>(kTokens) - 1);
  expect_same(again, cat, "the first image again");
  bool differ = cat.tokens != dog.tokens;
  for (size_t i = 0; i < std::min(cat.logprobs.size(), dog.logprobs.size()); ++i) {
    differ |= cat.logprobs[i].logprob != dog.logprobs[i].logprob;
  }
  EXPECT_TRUE(differ) << "the images make no difference, so the test shows nothing";
}

// Were an image's tokens not those that its identity names, two images could pass for one.
TEST(CacheFaults, AnIdentityNamesExactlyTheTokensOfItsImage) {
  auto context = make_cpu_context(1);
  Engine engine(*context, vision_model(), nullptr, options());
  const auto dim = static_cast<size_t>(vision_model().config().dim);
  const auto with = [&](std::vector<ImageIdentity> identities) {
    Request r = request(std::vector<int32_t>(60, 3), 1);
    r.images.dead.assign(60, 0);
    for (size_t i = 10; i < 20; ++i) r.images.dead[i] = 1;
    r.images.rows.resize(10 * dim);
    r.image_identities = std::move(identities);
    return r;
  };
  EXPECT_THROW(engine.submit(with({})), Error);
  EXPECT_THROW(engine.submit(with({{.start = 11, .count = 10}})), Error);
  EXPECT_THROW(engine.submit(with({{.start = 30, .count = 10}})), Error);
  EXPECT_THROW(engine.submit(with({{.start = 10, .count = 9}})), Error);
  EXPECT_THROW(engine.submit(with({{.start = 10, .count = 11}})), Error);
  EXPECT_TRUE(engine.submit(with({{.start = 10, .count = 10}})).has_value());
  EXPECT_TRUE(engine.submit(with({{.start = 10, .count = 4}, {.start = 14, .count = 6}})).has_value());
  engine.run();
}

// faults: "An aborted request leaks blocks. After any mix of cancels and errors, free blocks = all blocks when idle."
TEST(CacheFaults, AnyMixOfCancelsAndErrorsLeavesAllBlocksFree) {
  for (const bool draft : {false, true}) {
    EngineOptions o = options();
    o.blocks = 14;
    o.snapshots = 5;
    o.draft = o.draft_always = draft;
    Served served(o);
    std::mt19937 random(3);
    const auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    std::vector<RequestId> ids;
    for (int i = 0; i < (kPace > 1 ? 25 : 60); ++i) {
      Request r = telling(join(some_tokens(60 + 70 * below(3), below(3)), some_tokens(1 + below(30), 50 + below(9))),
                          static_cast<int32_t>(1 + below(25)));
      if (below(4) == 0) r.n = 3;
      const uint32_t throws_at = below(6) == 0 ? 1 + below(3) : 0;
      if (throws_at > 0) {
        r.on_event = [n = 0u, throws_at](const Event&) mutable {
          if (++n == throws_at) throw std::runtime_error("the client is gone");
        };
      }
      if (below(8) == 0) {
        r.max_tokens = -1;
        EXPECT_THROW(served.submit(std::move(r)), Error);
      } else {
        ids.push_back(served.submit(std::move(r)));
      }
      for (uint32_t steps = below(4); steps > 0; --steps) served.engine->step();
      if (below(2) == 0) served.engine->cancel(ids[below(static_cast<uint32_t>(ids.size()))]);
    }
    served.engine->run();
    served.expect_nothing_held();
    const EngineMetrics m = served.engine->metrics();
    EXPECT_GT(m.snapshots_evicted, 0);
    EXPECT_GT(m.hits, 0);
    // And what was left in the cache is right.
    for (uint32_t kind = 0; kind < 3; ++kind) {
      for (uint32_t length = 0; length < 3; ++length) {
        const Request r = telling(join(some_tokens(60 + 70 * length, kind), some_tokens(20, 99)));
        expect_same(answer_of(served, r), cold_answer(r), "afterwards");
      }
    }
    served.expect_nothing_held();
  }
}

// faults: "Window state is freed while a draft block is still in flight." The slot, the blocks and the snapshot buffers
// of a request that is cancelled from its own event, with its block verified and not yet committed, are others' at
// once.
TEST(CacheFaults, ARequestThatEndsWithABlockInFlightDisturbsNobody) {
  EngineOptions o = options();
  o.slots = 2;
  o.blocks = 8;
  o.draft = o.draft_always = true;
  Served served(o);
  std::vector<RequestId> stay;
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 6; ++i) {
    Request leaves = request(some_tokens(150 + 17 * i, 20 + i), 60);
    auto* engine = served.engine.get();
    leaves.on_event = [engine, tokens = size_t{0}, i](const Event& event) mutable {
      tokens += event.tokens.size();
      if (tokens >= 3 + i && !event.end) engine->cancel(event.request);
    };
    served.submit(std::move(leaves));
    prompts.push_back(some_tokens(130 + 23 * i, 40 + i));
    stay.push_back(served.submit(request(prompts.back(), 25)));
  }
  served.engine->run();
  for (size_t i = 0; i < stay.size(); ++i) {
    EXPECT_EQ(served.answer(stay[i]).tokens, alone(prompts[i], 25)) << "request " << i;
  }
  EXPECT_EQ(served.engine->metrics().blocks_total, 8);
  served.expect_nothing_held();
}

TEST(CacheFaults, SamplesOfOnePromptShareItsBlocks) {
  EngineOptions o = options();
  Served served(o);
  Request r = request(some_tokens(3 * 128 + 10, 12), 30, {.temperature = 1, .seed = 5});
  r.n = 4;
  const RequestId id = served.submit(r);
  int64_t most = 0;
  while (served.engine->step()) {
    const EngineMetrics m = served.engine->metrics();
    if (m.running == 4) most = std::max(most, m.blocks_total - m.blocks_free);
  }
  // Three full blocks, a partial one for each sample, and one that the prompt's snapshot keeps.
  EXPECT_GE(most, 3 + 4);
  EXPECT_LE(most, 3 + 4 + 1);
  served.expect_nothing_held();
  // One slot: nothing can be forked, each sample runs its prompt.
  o.slots = 1;
  o.snapshots = 0;
  Served one_by_one(o);
  const RequestId same = one_by_one.submit(r);
  one_by_one.engine->run();
  for (int32_t sample = 0; sample < 4; ++sample) {
    EXPECT_EQ(served.answer(id, sample).tokens, one_by_one.answer(same, sample).tokens) << "sample " << sample;
    EXPECT_EQ(served.answer(id, sample).tokens.size(), 30u);
  }
}

// More conversations than there are snapshots and blocks for: evicted, not mixed up.
TEST(CacheFaults, FullPoolsEvictAndEveryAnswerIsRight) {
  EngineOptions o = options();
  o.slots = 2;
  o.blocks = 9;
  o.snapshots = 3;
  Served served(o);
  std::vector<std::vector<int32_t>> conversations(5);
  for (uint32_t round = 0; round < 3; ++round) {
    for (const uint32_t c : {0u, 1u, 0u, 2u, 3u, 0u, 4u}) {
      auto& conversation = conversations[c];
      if (conversation.size() > 500) continue;
      conversation = join(conversation, some_tokens(66, 100 * c + round));
      const Answer found = answer_of(served, telling(conversation, 5));
      expect_same(found, cold_answer(telling(conversation, 5)), "conversation " + std::to_string(c));
      conversation = join(conversation, found.tokens);
    }
  }
  const EngineMetrics m = served.engine->metrics();
  EXPECT_GT(m.hits, 3);
  EXPECT_GT(m.snapshots_evicted, 3);
  EXPECT_LE(m.snapshots, 3);
  served.expect_nothing_held();
}

}  // namespace
}  // namespace mdi
