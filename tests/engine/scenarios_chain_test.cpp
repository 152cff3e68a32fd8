// Steps that start before the host has seen the tokens of the step before: what ends, is cancelled or fails in between
// leaves nothing behind, and what others go on from is the state before the step that came too soon.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "cache_stories.h"
#include "engine/slow_masks.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::Answer;
using testing::listening;
using testing::listening_ops;
using testing::request;
using testing::Served;
using testing::some_tokens;
using testing::stories::join;

EngineOptions options(bool device = true) {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 600;
  o.max_rows = 128;
  o.draft = false;
  o.snapshot_min_tokens = 1;
  o.device_sampling = device;
  return o;
}

TEST(Chain, AllStepsButTheFirstAndTheLastPromptsRunAhead) {
  Served served(options());
  const RequestId id = served.submit(request(some_tokens(20, 1), 40));
  served.engine->run();
  EXPECT_EQ(served.answer(id).tokens, alone(some_tokens(20, 1), 40));
  const EngineMetrics m = served.engine->metrics();
  EXPECT_EQ(m.steps_chained, m.steps - 1);
  EXPECT_EQ(m.tokens_on_device, 40);
  EXPECT_EQ(m.rows, 20 + 39);  // no row too many: the last token is known to be the last
  served.expect_nothing_held();
}

// The token after which an answer ends is seen when the next row has run already; that row is never committed, and the
// answer's snapshot is the state before it.
TEST(Chain, AStopTokenEndsTheAnswerWhereItIsAndItsSnapshotIsTheStateBeforeTheNextRow) {
  const std::vector<int32_t> prompt = some_tokens(130, 2);
  const std::vector<int32_t> whole = alone(prompt, 30);
  // A token that has not occurred before its place, so that the answer ends there.
  size_t at = 12;
  while (std::find(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(at), whole[at]) !=
         whole.begin() + static_cast<ptrdiff_t>(at)) {
    ++at;
  }
  for (const bool device : {true, false}) {
    Served served(options(device));
    Request r = request(prompt, 30);
    r.stop_ids = {whole[at]};
    const RequestId id = served.submit(r);
    const RequestId beside = served.submit(request(some_tokens(9, 3), 60));
    served.engine->run();
    const Answer first = served.answer(id);
    EXPECT_EQ(first.end, EndReason::kStop);
    EXPECT_EQ(first.tokens, std::vector<int32_t>(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(at) + 1));
    EXPECT_EQ(served.answer(beside).tokens, alone(some_tokens(9, 3), 60));
    EXPECT_EQ(served.engine->metrics().steps_chained > 0, device);
    served.expect_nothing_held();

    const auto again = join(join(prompt, first.tokens), some_tokens(30, 4));
    const RequestId second = served.submit(request(again, 20));
    served.engine->run();
    EXPECT_EQ(served.answer(second).tokens, alone(again, 20));
    EXPECT_EQ(served.answer(second).usage.cached_tokens, static_cast<int32_t>(prompt.size() + first.tokens.size()) - 1);
    served.expect_nothing_held();
  }
}

TEST(Chain, ACancelledRequestGetsNothingMoreAndItsSlotIsAnothers) {
  EngineOptions o = options();
  o.slots = 2;
  Served served(o);
  const RequestId cancelled = served.submit(request(some_tokens(40, 5), 200));
  const RequestId stays = served.submit(request(some_tokens(41, 6), 60));
  const RequestId waits = served.submit(request(some_tokens(42, 7), 60));
  while (served.answer(cancelled).tokens.size() < 5) served.engine->step();
  served.engine->cancel(cancelled);
  served.engine->step();
  const size_t tokens = served.answer(cancelled).tokens.size();
  EXPECT_EQ(served.answer(cancelled).end, EndReason::kCancelled);
  served.engine->run();
  EXPECT_EQ(served.answer(cancelled).tokens.size(), tokens);
  EXPECT_EQ(served.answer(stays).tokens, alone(some_tokens(41, 6), 60));
  EXPECT_EQ(served.answer(waits).tokens, alone(some_tokens(42, 7), 60));
  EXPECT_GT(served.engine->metrics().steps_chained, 60);
  served.expect_nothing_held();
}

TEST(Chain, AnEngineThatEndsWithAStepInFlightEndsItsRequestsOnce) {
  Answer answer;
  {
    Served served(options());
    Request r = request(some_tokens(20, 1), 100);
    r.on_event = [&answer](const Event& e) {
      EXPECT_FALSE(answer.end.has_value());
      answer.end = e.end;
      ++answer.events;
    };
    served.submit(std::move(r));
    for (int i = 0; i < 5; ++i) served.engine->step();
  }
  EXPECT_EQ(answer.end, EndReason::kCancelled);
  EXPECT_GE(answer.events, 5);
}

// Rows for the host and rows for the device in one step; what the host needs, it gets.
TEST(Chain, RequestsThatNeedTheHostShareStepsWithOthers) {
  Served served(options());
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 8; ++i) {
    Request r = request(some_tokens(10 + 7 * i, i), 25, {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i});
    if (i % 4 == 2) r.logprobs = 3;
    if (i % 4 == 3) r.allowed = [](std::span<const int32_t>, TokenBits) { return false; };
    ids.push_back(served.submit(std::move(r)));
  }
  served.engine->run();
  for (uint32_t i = 0; i < 8; ++i) {
    const SamplingParams sampling{.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i};
    EXPECT_EQ(served.answer(ids[i]).tokens, alone(some_tokens(10 + 7 * i, i), 25, sampling)) << i;
    if (i % 4 != 2) continue;
    for (size_t t = 0; t < 25; ++t) {
      ASSERT_EQ(served.answer(ids[i]).logprobs[t].top.size(), 3u);
      EXPECT_EQ(served.answer(ids[i]).logprobs[t].top[0].token, served.answer(ids[i]).tokens[t]);
    }
  }
  const EngineMetrics m = served.engine->metrics();
  EXPECT_EQ(m.tokens_on_device, 4 * 25);
  served.expect_nothing_held();
}

// Masks of several requests are asked for from several threads, each for its own tokens.
TEST(Chain, GrammarsOfSeveralRequestsAreAskedWithTheirOwnTokens) {
  Served served(options());
  std::vector<RequestId> ids;
  const auto only = [](size_t i, size_t place) { return static_cast<int32_t>((i * 31 + place * 7) % 500); };
  for (size_t i = 0; i < 4; ++i) {
    Request r = request(some_tokens(10, static_cast<uint32_t>(i)), 20);
    r.allowed = [only, i](std::span<const int32_t> generated, TokenBits bits) {
      for (size_t k = 0; k < generated.size(); ++k) {
        if (generated[k] != only(i, k)) return true;  // nothing is allowed: the request fails
      }
      const auto next = static_cast<size_t>(only(i, generated.size()));
      bits[next / 32] |= 1u << (next % 32);
      return true;
    };
    ids.push_back(served.submit(std::move(r)));
  }
  served.engine->run();
  for (size_t i = 0; i < 4; ++i) {
    const Answer& answer = served.answer(ids[i]);
    EXPECT_EQ(answer.end, EndReason::kLength) << answer.error;
    for (size_t k = 0; k < answer.tokens.size(); ++k) EXPECT_EQ(answer.tokens[k], only(i, k));
  }
}

// The samples of a request draw their first tokens at once, from one row of logits and one mask.
TEST(Chain, SamplesShareTheMaskBehindTheirPrompt) {
  const SamplingParams random{.temperature = 2, .seed = 3};
  const auto odd = [](std::span<const int32_t>, TokenBits bits) {
    std::fill(bits.begin(), bits.end(), 0xAAAAAAAAu);
    return true;
  };
  std::vector<int32_t> first;
  std::set<std::vector<int32_t>> different;
  for (const int32_t n : {4, 3}) {
    Served served(options());
    Request r = request(some_tokens(10, 0), 5, random);
    r.n = n;
    int asked = 0;
    r.allowed = [&asked, odd](std::span<const int32_t> generated, TokenBits bits) {
      if (generated.empty()) ++asked;
      return odd(generated, bits);
    };
    const RequestId id = served.submit(std::move(r));
    served.engine->run();
    EXPECT_EQ(asked, 1);
    for (int32_t sample = 0; sample < n; ++sample) {
      const Answer& answer = served.answer(id, sample);
      ASSERT_EQ(answer.tokens.size(), 5u);
      for (const int32_t token : answer.tokens) EXPECT_EQ(token % 2, 1);
      if (n == 4) first.push_back(answer.tokens.front());
      different.insert(answer.tokens);
      EXPECT_EQ(answer.tokens.front(), first[static_cast<size_t>(sample)]) << "depends on how many there are";
    }
    served.expect_nothing_held();
  }
  EXPECT_GT(different.size(), 1u);
}

TEST(Chain, AGrammarThatThrowsEndsItsRequestWithItsWords) {
  Served served(options());
  Request r = request(some_tokens(10, 0), 20);
  r.allowed = [](std::span<const int32_t> generated, TokenBits) -> bool {
    if (generated.size() == 3) throw std::runtime_error("no such rule");
    return false;
  };
  const RequestId broken = served.submit(std::move(r));
  const RequestId fine = served.submit(request(some_tokens(10, 1), 20));
  served.engine->run();
  EXPECT_EQ(served.answer(broken).end, EndReason::kInvalid);
  EXPECT_EQ(served.answer(broken).error, "no such rule");
  EXPECT_EQ(served.answer(broken).tokens.size(), 3u);
  EXPECT_EQ(served.answer(fine).tokens, alone(some_tokens(10, 1), 20));
  EXPECT_EQ(served.engine->metrics().ended_invalid, 1);
  served.expect_nothing_held();
}

// A mask that takes long holds up its own request: others get all of their tokens while it is being made.
TEST(Chain, NobodyElseWaitsForASlowMask) {
  Served served(options());
  std::mutex mutex;
  std::condition_variable wake;
  bool others_done = false, in_time = true;
  std::vector<RequestId> slow;
  for (uint32_t i = 0; i < 3; ++i) {
    Request r = request(some_tokens(10, i), 12, {.temperature = i == 0 ? 0.0f : 0.8f, .seed = i});
    r.slow_masks = [] { return true; };
    r.allowed = [&](std::span<const int32_t> generated, TokenBits bits) {
      std::unique_lock lock(mutex);
      const auto done = [&] { return others_done; };
      if (generated.size() == 4) in_time = wake.wait_for(lock, std::chrono::seconds(60), done) && in_time;
      std::fill(bits.begin(), bits.end(), 0xFFFFFFFFu);
      return true;
    };
    slow.push_back(served.submit(std::move(r)));
  }
  const RequestId other = served.submit(request(some_tokens(10, 7), 40));
  Request with_grammar = request(some_tokens(10, 8), 40);
  with_grammar.allowed = [](std::span<const int32_t>, TokenBits) { return false; };
  const RequestId another = served.submit(std::move(with_grammar));
  for (int i = 0; i < 400 && !(served.answer(other).end && served.answer(another).end); ++i) served.engine->step();
  EXPECT_EQ(served.answer(other).tokens, alone(some_tokens(10, 7), 40));
  EXPECT_EQ(served.answer(another).tokens, alone(some_tokens(10, 8), 40));
  for (const RequestId id : slow) EXPECT_LE(served.answer(id).tokens.size(), 4u);
  {
    const std::lock_guard lock(mutex);
    others_done = true;
  }
  wake.notify_all();
  served.engine->run();
  EXPECT_TRUE(in_time);
  for (uint32_t i = 0; i < 3; ++i) {
    const SamplingParams sampling{.temperature = i == 0 ? 0.0f : 0.8f, .seed = i};
    EXPECT_EQ(served.answer(slow[i]).tokens, alone(some_tokens(10, i), 12, sampling)) << i;
  }
  served.expect_nothing_held();
}

// A thread that the system does not give later would end everybody's requests.
TEST(Chain, AllThreadsOfAnEngineAreThereBeforeItsFirstRequest) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  Served served(options());
  const auto before = threads();
  for (uint32_t i = 0; i < 4; ++i) {
    Request r = request(some_tokens(10, i), 6);
    r.allowed = [](std::span<const int32_t>, TokenBits) { return false; };
    if (i % 2 == 0) r.slow_masks = [] { return true; };
    served.submit(std::move(r));
  }
  served.engine->run();
  EXPECT_EQ(served.engine->metrics().ended_length, 4);
  EXPECT_LE(threads(), before);
}

// Whoever leaves while a slow mask is being made holds nothing.
TEST(Chain, TheSlowMaskOfARequestThatLeft) {
  Served served(options());
  Request r = request(some_tokens(10, 1), 6);
  r.slow_masks = [] { return true; };
  r.allowed = [](std::span<const int32_t>, TokenBits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return false;
  };
  const RequestId gone = served.submit(std::move(r));
  for (int i = 0; i < 2; ++i) served.engine->step();
  served.engine->cancel(gone);
  served.engine->run();
  EXPECT_EQ(served.answer(gone).end, EndReason::kCancelled);
  served.expect_nothing_held();
}

TEST(SlowMasksOrder, ClientsTakeTurns) {
  std::mutex mutex;
  std::condition_variable wake;
  bool begun = false, go = false;
  std::string made;
  SlowMasks masks(64);
  const auto ask = [&](const std::string& client) {
    auto owner = std::make_shared<RequestState>();
    owner->request.client = client;
    owner->request.allowed = [&, client](std::span<const int32_t>, TokenBits) {
      std::unique_lock lock(mutex);
      begun = true;
      wake.notify_all();
      wake.wait(lock, [&] { return go; });
      made += client;
      return false;
    };
    return masks.ask(owner, {});
  };
  std::vector<std::shared_ptr<SlowMask>> asked = {ask("x")};
  {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return begun; });
  }
  for (const char* client : {"a", "a", "a", "b", "b", "c"}) asked.push_back(ask(client));
  ask("a");  // nobody waits for it
  {
    const std::lock_guard lock(mutex);
    go = true;
  }
  wake.notify_all();
  for (const auto& mask : asked) {
    while (!masks.done(*mask)) masks.wait({&mask, 1}, 60);
  }
  EXPECT_EQ(made, "xabcaba");
}

}  // namespace
}  // namespace mdi
