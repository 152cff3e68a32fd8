// Stories of a server's day: hang-ups, late events, hostile requests, full queues, deadlines, requests that spin.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::alone;
using testing::Listening;
using testing::listening;
using testing::listening_ops;
using testing::request;
using testing::Served;
using testing::some_tokens;

EngineOptions options() {
  EngineOptions o;
  o.slots = 4;
  o.max_length = 600;
  o.max_rows = 64;
  o.draft = false;
  return o;
}

// Steps until a request has generated this many tokens.
void step_until(Served& served, RequestId id, size_t tokens) {
  while (served.answer(id).tokens.size() < tokens) ASSERT_TRUE(served.engine->step());
}

TEST(Serving, AClientHangsUpInMidAnswerAndGenerationStopsWithinAStep) {
  Served served(options());
  const RequestId gone = served.submit(request(some_tokens(30, 1), 500));
  const RequestId stays = served.submit(request(some_tokens(40, 2), 12));
  step_until(served, gone, 3);
  const size_t before = served.answer(gone).tokens.size();
  served.engine->cancel(gone);
  served.engine->step();
  EXPECT_EQ(served.answer(gone).tokens.size(), before);
  EXPECT_EQ(served.answer(gone).end, EndReason::kCancelled);
  EXPECT_EQ(served.engine->metrics().running, 1);
  served.engine->run();
  EXPECT_EQ(served.answer(stays).tokens, alone(some_tokens(40, 2), 12));
  served.expect_nothing_held();
}

TEST(Serving, AClientHangsUpInMidPrefillAndTheNextOneWithThePrefixStillGetsTheRightAnswer) {
  Served served(options());
  const auto prompt = some_tokens(400, 3);
  const RequestId gone = served.submit(request(prompt, 10));
  served.engine->step();
  served.engine->step();
  EXPECT_TRUE(served.answer(gone).tokens.empty());
  served.engine->cancel(gone);
  const RequestId next = served.submit(request(prompt, 10));
  served.engine->run();
  EXPECT_EQ(served.answer(gone).end, EndReason::kCancelled);
  EXPECT_EQ(served.answer(next).tokens, alone(prompt, 10));
  served.expect_nothing_held();
}

TEST(Serving, ACallbackCancelsItsOwnRequestAndAnother) {
  Served served(options());
  const RequestId other = served.submit(request(some_tokens(20, 4), 400));
  Request r = request(some_tokens(20, 5), 400);
  int seen = 0;
  r.on_event = [&](const Event& event) {
    seen += static_cast<int>(event.tokens.size());
    if (seen == 5 && !event.end) {
      served.engine->cancel(event.request);
      served.engine->cancel(other);
    }
  };
  served.submit(std::move(r));
  served.engine->run();
  EXPECT_EQ(seen, 5);
  EXPECT_EQ(served.answer(other).end, EndReason::kCancelled);
  served.expect_nothing_held();
}

TEST(Serving, ACallbackThatThrowsEndsItsOwnRequestOnly) {
  Served served(options());
  Request r = request(some_tokens(20, 6), 400);
  r.on_event = [](const Event&) { throw std::runtime_error("the socket is gone"); };
  served.submit(std::move(r));
  const RequestId fine = served.submit(request(some_tokens(20, 7), 10));
  served.engine->run();
  EXPECT_EQ(served.answer(fine).tokens, alone(some_tokens(20, 7), 10));
  EXPECT_EQ(served.engine->metrics().callback_errors, 1);
  EXPECT_EQ(served.engine->metrics().ended_cancelled, 1);
  served.expect_nothing_held();
}

TEST(Serving, ALateEventForAnUnknownRequestIsIgnoredAndCounted) {
  Served served(options());
  const RequestId id = served.submit(request(some_tokens(10, 8), 2));
  served.engine->run();
  served.engine->cancel(id);       // has ended
  served.engine->cancel(id + 99);  // never was
  served.engine->step();
  EXPECT_EQ(served.engine->metrics().late_cancels, 2);
  EXPECT_EQ(served.answer(id).end, EndReason::kLength);
}

TEST(Serving, AFullQueueAnswersAtOnce) {
  EngineOptions o = options();
  o.slots = 1;
  o.max_queue = 2;
  Served served(o);
  const RequestId first = served.submit(request(some_tokens(10, 1), 5));
  EXPECT_NE(served.submit(request(some_tokens(10, 2), 5)), 0u);
  EXPECT_EQ(served.submit(request(some_tokens(10, 3), 5)), 0u);  // two wait already
  served.engine->step();                                         // the first is admitted
  EXPECT_NE(served.submit(request(some_tokens(10, 3), 5)), 0u);
  EXPECT_EQ(served.submit(request(some_tokens(10, 4), 5)), 0u);
  EXPECT_EQ(served.engine->metrics().refused_full, 2);
  served.engine->run();
  EXPECT_EQ(served.answer(first).end, EndReason::kLength);
  EXPECT_EQ(served.engine->metrics().ended_length, 3);
  EXPECT_NE(served.submit(request(some_tokens(10, 5), 5)), 0u);
  served.engine->run();
  served.expect_nothing_held();
}

TEST(Serving, ACancelledRequestLeavesTheQueue) {
  EngineOptions o = options();
  o.slots = 1;
  o.max_queue = 1;
  Served served(o);
  served.submit(request(some_tokens(10, 1), 50));
  served.engine->step();
  const RequestId waits = served.submit(request(some_tokens(10, 2), 5));
  EXPECT_EQ(served.submit(request(some_tokens(10, 3), 5)), 0u);
  served.engine->cancel(waits);
  served.engine->step();
  EXPECT_EQ(served.answer(waits).end, EndReason::kCancelled);
  EXPECT_NE(served.submit(request(some_tokens(10, 3), 5)), 0u);
}

TEST(Serving, ADeadlineHoldsInTheQueueAndWhileRunning) {
  double time = 100;
  EngineOptions o = options();
  o.slots = 1;
  o.clock = [&time] { return time; };
  Served served(o);
  Request r = request(some_tokens(10, 1), 400);
  r.deadline = 10;
  const RequestId runs = served.submit(std::move(r));
  Request w = request(some_tokens(10, 2), 5);
  w.deadline = 4;
  const RequestId waits = served.submit(std::move(w));
  served.engine->step();
  time = 103.9;
  served.engine->step();
  EXPECT_FALSE(served.answer(waits).end.has_value());
  time = 104;
  served.engine->step();
  EXPECT_EQ(served.answer(waits).end, EndReason::kDeadline);
  EXPECT_FALSE(served.answer(runs).end.has_value());
  time = 110;
  served.engine->step();
  EXPECT_EQ(served.answer(runs).end, EndReason::kDeadline);
  EXPECT_FALSE(served.answer(runs).tokens.empty());
  served.expect_nothing_held();
}

// A request that gets on is never barked at, however long it takes; one that does not is ended, and others go on.
TEST(Serving, OneRequestThatSpinsForEverIsEndedByTheWatchdog) {
  double time = 0;
  EngineOptions o = options();
  o.stall_limit = 60;
  o.clock = [&time] { return time; };
  o.preempt_every = 1;  // the youngest starts over before every step
  Served served(o);
  const RequestId steady = served.submit(request(some_tokens(10, 1), 40));
  const RequestId spins = served.submit(request(some_tokens(500, 2), 40));
  while (!served.answer(spins).end.has_value() && !served.answer(steady).end.has_value()) {
    served.engine->step();
    time += 25;
  }
  EXPECT_EQ(served.answer(spins).end, EndReason::kStalled);
  EXPECT_NE(served.answer(spins).error.find("no progress"), std::string::npos);
  served.engine->run();
  EXPECT_EQ(served.answer(steady).tokens, alone(some_tokens(10, 1), 40));
}

// Time in which a request does not run is no stall, however often it is made to wait between two tokens.
TEST(Serving, TheWatchdogDoesNotCountTheTimeThatARequestIsPaused) {
  double time = 0;
  EngineOptions o = options();
  o.stall_limit = 60;
  o.max_rows = 64;
  o.snapshots = 0;
  o.clock = [&time] { return time; };
  Served served(o);
  const RequestId id = served.submit(request(some_tokens(300, 1), 5));
  for (int i = 0; i < 8; ++i) {
    for (int step = 0; step < 2; ++step) {
      served.engine->step();
      time += 1;
    }
    served.engine->pause(id);
    served.engine->step();
    time += 1000;
    served.engine->resume(id);
  }
  EXPECT_TRUE(served.answer(id).tokens.empty());
  served.engine->run();
  EXPECT_EQ(served.answer(id).end, EndReason::kLength) << served.answer(id).error;
  EXPECT_EQ(served.answer(id).tokens, alone(some_tokens(300, 1), 5));
  served.expect_nothing_held();
}

TEST(Serving, HostileParametersAreRefusedBeforeAnythingIsDoneForThem) {
  Served served(options());
  const RequestId good = served.submit(request(some_tokens(10, 1), 5));
  const auto refuses = [&](const char* names, auto change) {
    Request r = request(some_tokens(10, 1), 5);
    change(r);
    try {
      served.submit(std::move(r));
      ADD_FAILURE() << "accepted: " << names;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(names), std::string::npos) << e.what();
    }
  };
  refuses("no tokens", [](Request& r) { r.prompt.clear(); });
  refuses("prompt token", [](Request& r) { r.prompt[3] = 512; });
  refuses("prompt token", [](Request& r) { r.prompt[3] = -1; });
  refuses("max_tokens", [](Request& r) { r.max_tokens = 0; });
  refuses("max_tokens", [](Request& r) { r.max_tokens = 2147483647; });
  refuses("do not fit", [](Request& r) { r.prompt.resize(598, 1); });
  refuses("n:", [](Request& r) { r.n = 1000000; });
  refuses("n:", [](Request& r) { r.n = 0; });
  refuses("top logprobs", [](Request& r) { r.logprobs = 100000; });
  refuses("stop_ids", [](Request& r) { r.stop_ids.assign(100000, 1); });
  refuses("stop id", [](Request& r) { r.stop_ids = {99999}; });
  refuses("stop", [](Request& r) { r.stop.assign(1000, "x"); });
  refuses("bytes of a stop string", [](Request& r) { r.stop = {std::string(100000, 'x')}; });
  refuses("bytes of a stop string", [](Request& r) { r.stop = {""}; });
  refuses("tokenizer", [](Request& r) { r.stop = {"x"}; });
  refuses("logit_bias", [](Request& r) { r.sampling.logit_bias.resize(100000); });
  refuses("token of logit_bias", [](Request& r) { r.sampling.logit_bias = {{.token = 512, .bias = 1}}; });
  refuses("temperature", [](Request& r) { r.sampling.temperature = std::nanf(""); });
  refuses("salt", [](Request& r) { r.salt.assign(100000, 'x'); });
  refuses("deadline", [](Request& r) { r.deadline = -1; });
  refuses("deadline", [](Request& r) { r.deadline = std::nan(""); });
  refuses("text only", [](Request& r) {
    r.images.dead.assign(10, 1);
    r.images.rows.resize(10 * 128);
  });
  EXPECT_EQ(served.engine->metrics().refused_invalid, 22);
  served.engine->run();
  EXPECT_EQ(served.answer(good).tokens, alone(some_tokens(10, 1), 5));
}

TEST(Serving, EveryEndIsSentOnceForEverySampleAlsoOfOnesThatNeverStarted) {
  EngineOptions o = options();
  Served served(o);
  Request r = request(some_tokens(300, 1), 50);
  r.n = 3;
  const RequestId id = served.submit(std::move(r));
  served.engine->step();
  served.engine->cancel(id);
  served.engine->run();
  int last = 0;
  for (int32_t sample = 0; sample < 3; ++sample) {
    EXPECT_EQ(served.answer(id, sample).end, EndReason::kCancelled);
    EXPECT_EQ(served.answer(id, sample).events, 1);
    last += served.answer(id, sample).last ? 1 : 0;
  }
  EXPECT_EQ(last, 1);
  served.expect_nothing_held();
}

TEST(Serving, OneSampleIsCancelledAndTheOthersGoOn) {
  const SamplingParams random{.temperature = 1, .seed = 4};
  Request r = request(some_tokens(30, 1), 40, random);
  r.n = 3;
  Served whole(options());
  const RequestId all = whole.submit(r);
  whole.engine->run();
  Served served(options());
  const RequestId id = served.submit(std::move(r));
  step_until(served, id, 4);
  served.engine->cancel_sample(id, 1);
  served.engine->cancel_sample(id, 7);  // there is none
  served.engine->run();
  EXPECT_EQ(served.answer(id, 1).end, EndReason::kCancelled);
  EXPECT_LT(served.answer(id, 1).tokens.size(), 40u);
  for (const int32_t sample : {0, 2}) EXPECT_EQ(served.answer(id, sample).tokens, whole.answer(all, sample).tokens);
  EXPECT_EQ(served.engine->metrics().late_cancels, 1);
  served.expect_nothing_held();
}

// Paused in prefill, while it decodes and while it waits; what it says is the same.
TEST(Serving, APausedRequestGivesWayAndGoesOn) {
  for (const bool chained : {true, false}) {
    EngineOptions o = options();
    o.slots = 2;
    o.max_rows = 64;
    o.device_sampling = chained;
    Served served(o);
    const std::vector<int32_t> prompt = some_tokens(150, 1), other = some_tokens(20, 2);
    const RequestId first = served.submit(request(prompt, 30));
    const RequestId second = served.submit(request(other, 60));
    served.engine->step();
    served.engine->pause(first);  // in prefill
    step_until(served, second, 5);
    EXPECT_TRUE(served.answer(first).tokens.empty());
    served.engine->pause(second);
    served.engine->run();  // nothing but what is paused: nothing to do
    EXPECT_FALSE(served.engine->step());
    EXPECT_EQ(served.engine->metrics().slots_free, 2);
    const RequestId third = served.submit(request(some_tokens(25, 3), 12));
    served.engine->resume(first);
    step_until(served, first, 3);
    served.engine->pause(first);
    served.engine->resume(first);
    served.engine->resume(second);
    served.engine->resume(second);  // runs: nothing to be done
    served.engine->run();
    EXPECT_EQ(served.answer(first).tokens, alone(prompt, 30));
    EXPECT_EQ(served.answer(second).tokens, alone(other, 60));
    EXPECT_EQ(served.answer(third).tokens, alone(some_tokens(25, 3), 12));
    served.engine->pause(first);  // has ended
    EXPECT_GE(served.engine->metrics().preemptions, 3);
    served.engine->run();
    served.expect_nothing_held();
  }
}

TEST(Serving, SamplesOfARequestAreCancelledTogether) {
  Served served(options());
  Request r = request(some_tokens(30, 1), 500, {.temperature = 1});
  r.n = 6;  // more than there are slots
  const RequestId id = served.submit(std::move(r));
  step_until(served, id, 4);
  served.engine->cancel(id);
  served.engine->step();
  for (int32_t sample = 0; sample < 6; ++sample) {
    EXPECT_EQ(served.answer(id, sample).end, EndReason::kCancelled) << sample;
  }
  served.expect_nothing_held();
}

TEST(Serving, AnEngineThatEndsTellsEverybody) {
  std::map<RequestId, int> ends;
  {
    Served served(options());
    for (uint32_t i = 0; i < 8; ++i) {
      Request r = request(some_tokens(20, i), 300);
      r.on_event = [&ends](const Event& event) {
        if (event.end == EndReason::kCancelled && event.last) ++ends[event.request];
      };
      served.submit(std::move(r));
      if (i == 5) served.engine->step();
    }
  }
  EXPECT_EQ(ends.size(), 8u);
  for (const auto& [id, count] : ends) EXPECT_EQ(count, 1) << id;
}

TEST(Serving, ABackendThatFailsEndsEveryRequestWithItsMessageAndIsNotAskedAgain) {
  listening() = {};
  Served served(options(), nullptr, &listening_ops());
  const RequestId id = served.submit(request(some_tokens(20, 1), 30));
  step_until(served, id, 2);
  const RequestId queued = served.submit(request(some_tokens(20, 2), 30));
  listening().head_throws = true;
  EXPECT_THROW(served.engine->step(), std::runtime_error);
  listening().head_throws = false;
  EXPECT_EQ(served.answer(id).end, EndReason::kError);
  EXPECT_EQ(served.answer(id).error, "the backend fails");
  EXPECT_EQ(served.answer(queued).end, EndReason::kError);
  EXPECT_THROW(served.submit(request(some_tokens(20, 3), 30)), Error);
  served.expect_nothing_held();
}

// A step that fails while a long prompt is hashed: the request is told, by submit() or by an event.
TEST(Serving, ARequestThatComesWhileTheBackendFailsIsTold) {
  listening() = {};
  EngineOptions o = options();
  o.max_length = 200000;
  o.slots = 1;
  std::atomic<bool> coming{false};
  const std::thread::id stepper = std::this_thread::get_id();
  // submit() reads the clock just before it looks for the first time whether the engine has failed.
  o.clock = [&coming, stepper] {
    if (std::this_thread::get_id() != stepper) coming = true;
    return 1.0;
  };
  std::vector<int32_t> prompt;
  while (prompt.size() < 199000) prompt.insert(prompt.end(), 500, static_cast<int32_t>(prompt.size() / 500));
  for (int round = 0; round < 10; ++round) {
    Served served(o, nullptr, &listening_ops());
    served.submit(request(some_tokens(4, 1), 30));
    coming = false;
    listening().on_logits = [&coming](int32_t, std::span<float>) {
      while (!coming) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      throw std::runtime_error("the backend fails");
    };
    bool thrown = false;
    std::atomic<int> events{0};
    std::thread client([&] {
      Request r = request(prompt, 30, {.temperature = 0, .presence_penalty = 1});
      r.on_event = [&events](const Event&) { ++events; };
      try {
        served.engine->submit(std::move(r));
      } catch (const Error&) {
        thrown = true;
      }
    });
    EXPECT_THROW(served.engine->step(), std::runtime_error);
    client.join();
    EXPECT_EQ((thrown ? 1 : 0) + events, 1) << "round " << round;
    listening() = {};
  }
}

// Four clients submit and cancel while the engine runs on its own thread.
TEST(Serving, ManyThreadsSubmitAndCancelWhileTheEngineRuns) {
  EngineOptions o = options();
  o.max_queue = 1000;
  auto context = make_cpu_context(1);
  Engine engine(*context, testing::tiny_model(), nullptr, o);
  engine.start();
  std::atomic<int> ended{0};
  std::atomic<int> right{0};
  const auto expected = alone(some_tokens(25, 9), 8);
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 10; ++i) {
        auto tokens = std::make_shared<std::vector<int32_t>>();
        Request r = request(some_tokens(25, 9), 8);
        r.on_event = [&, tokens](const Event& event) {
          for (const GeneratedToken& t : event.tokens) tokens->push_back(t.id);
          if (event.last) ++ended;
          if (event.end == EndReason::kLength && *tokens == expected) ++right;
        };
        const auto id = engine.submit(std::move(r));
        if (id && (i + c) % 3 == 0) engine.cancel(*id);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < 6000 && ended < 40; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  engine.stop();
  EXPECT_EQ(ended, 40);
  const EngineMetrics m = engine.metrics();
  EXPECT_EQ(right, m.ended_length);
  EXPECT_EQ(m.ended_length + m.ended_cancelled, 40);
  EXPECT_GE(right, 26);
}

// What streaming needs: each token once, in events as they come, with log-probabilities and usage.
TEST(Serving, EventsCarryTokensLogprobsAndUsage) {
  Served served(options());
  Request r = request(some_tokens(30, 1), 6);
  r.logprobs = 3;
  r.stop_ids = {};
  const RequestId id = served.submit(std::move(r));
  served.engine->run();
  const auto& answer = served.answer(id);
  EXPECT_EQ(answer.events, 6);
  EXPECT_EQ(answer.usage.prompt_tokens, 30);
  EXPECT_EQ(answer.usage.completion_tokens, 6);
  EXPECT_EQ(answer.usage.cached_tokens, 0);
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    ASSERT_EQ(answer.logprobs[i].top.size(), 3u);
    EXPECT_EQ(answer.logprobs[i].top[0].token, answer.tokens[i]);  // greedy
    EXPECT_EQ(answer.logprobs[i].top[0].logprob, answer.logprobs[i].logprob);
    EXPECT_LT(answer.logprobs[i].logprob, 0);
  }
  // The same again: found in the prefix cache but for the token that has to run.
  Request again = request(some_tokens(30, 1), 6);
  again.stop_ids = {answer.tokens[2]};
  Served cached([] {
    EngineOptions o = options();
    o.snapshot_min_tokens = 1;
    return o;
  }());
  cached.submit(request(some_tokens(30, 1), 6));
  cached.engine->run();
  const RequestId second = cached.submit(std::move(again));
  cached.engine->run();
  const auto& stopped = cached.answer(second);
  EXPECT_EQ(stopped.usage.cached_tokens, 29);
  EXPECT_EQ(stopped.end, EndReason::kStop);
  EXPECT_EQ(stopped.tokens.back(), answer.tokens[2]);
  EXPECT_LE(stopped.tokens.size(), 3u);
}

}  // namespace
}  // namespace mdi
