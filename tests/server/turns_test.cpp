// Requests that wait: whose turn it is, what the queue's bound counts, and ends before the engine has seen them.
#include "server/turns.h"

#include <algorithm>
#include <thread>

#include "talk.h"

namespace mdi {
namespace {

using testing::KeptReply;
using testing::Talk;
using Replies = std::vector<std::shared_ptr<KeptReply>>;

constexpr const char* kChat = "/v1/chat/completions";

std::string chat(int tokens) {
  return R"({"messages":[{"role":"user","content":"Go on."}],"ignore_eos":true,"max_tokens":)" +
         std::to_string(tokens) + "}";
}

// As a client with this key; comes back when it is queued or answered.
std::shared_ptr<KeptReply> queue_for(const Talk& talk, const std::string& key, int tokens) {
  auto reply = talk.send("POST", kChat, chat(tokens), key);
  while (!reply->registered() && !reply->wait(0)) std::this_thread::yield();
  return reply;
}

EngineOptions engine_of(int32_t slots, int32_t queue) {
  EngineOptions o = Talk::engine_options();
  o.slots = slots;
  o.max_queue = queue;
  return o;
}

TEST(Turns, AClientWithLittleDoesNotWaitForOneWithMuch) {
  const Talk talk(engine_of(2, 100), Talk::service_options(), false);
  Replies much;
  for (int i = 0; i < 12; ++i) much.push_back(queue_for(talk, "much", 40));
  const auto little = queue_for(talk, "little", 3), other = queue_for(talk, "other", 3);
  talk.service->start();
  EXPECT_TRUE(little->wait() && other->wait());
  const auto done = std::count_if(much.begin(), much.end(), [](const auto& reply) { return reply->wait(0); });
  EXPECT_LE(done, 6);  // two ran already; with one queue it would be all twelve
  EXPECT_EQ(little->status(), 200);
  EXPECT_EQ(other->status(), 200);
  for (const auto& reply : much) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200);
  }
  talk.expect_nothing_held();
}

TEST(Turns, WhatCanStartAtOnceDoesNotWait) {
  const Talk talk(engine_of(8, 1));
  Replies replies;
  for (int i = 0; i < 6; ++i) replies.push_back(talk.send("POST", kChat, chat(30)));
  for (const auto& reply : replies) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200) << reply->body();
  }
  EXPECT_EQ(talk.service->metrics().refused_full, 0);
  talk.expect_nothing_held();
}

TEST(Turns, SeveralPromptsAreTakenAsOneRequest) {
  const Talk talk(engine_of(2, 1));
  std::string prompts = R"("a")";
  for (int i = 0; i < 29; ++i) prompts += R"(,"a")";
  const OrderedJson answer = talk.ask("/v1/completions", R"({"max_tokens":1,"prompt":[)" + prompts + "]}");
  EXPECT_EQ(answer["choices"].size(), 30u);
  talk.expect_nothing_held();
}

TEST(Turns, SamplesTakeTheirSlots) {
  const Talk talk(engine_of(4, 100));
  Replies replies;
  for (int i = 0; i < 4; ++i) {
    replies.push_back(talk.send("POST", kChat, chat(5).insert(1, R"("n":7,)")));  // more than there are slots
    replies.push_back(talk.send("POST", kChat, chat(5).insert(1, R"("n":2,)")));
  }
  for (const auto& reply : replies) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200) << reply->body();
  }
  talk.expect_nothing_held();
}

TEST(Turns, OneClientLeavesRoomInTheQueue) {
  const Talk talk(engine_of(1, 8), Talk::service_options(), false);
  Replies taken;
  for (int i = 0; i < 7; ++i) taken.push_back(queue_for(talk, "much", 2));  // one of them with the engine
  EXPECT_EQ(talk.service->metrics().waiting, 7);
  EXPECT_EQ(queue_for(talk, "much", 2)->status(), 429);
  taken.push_back(queue_for(talk, "little", 2));
  taken.push_back(queue_for(talk, "other", 2));
  EXPECT_EQ(queue_for(talk, "another", 2)->status(), 429);
  EXPECT_EQ(talk.service->metrics().refused_full, 2);
  talk.service->start();
  for (const auto& reply : taken) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200) << reply->body();
  }
  EXPECT_EQ(talk.service->metrics().submitted, 9);
  talk.expect_nothing_held();
}

void wait_until_running(const Talk& talk, int64_t count) {
  for (int i = 0; i < 30'000; ++i) {
    const EngineMetrics m = talk.service->engine().metrics();
    if (m.running >= count && m.generated_tokens > 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  FAIL() << "never " << count << " at once";
}

std::string greedy(int tokens) { return chat(tokens).insert(1, R"("temperature":0,)"); }

std::shared_ptr<KeptReply> queue_body(const Talk& talk, const std::string& key, const std::string& body) {
  auto reply = talk.send("POST", kChat, body, key);
  while (!reply->registered() && !reply->wait(0)) std::this_thread::yield();
  return reply;
}

std::string content_of(const KeptReply& reply) { return reply.json()["choices"][0]["message"]["content"]; }

// Four long answers have the four slots. Others get theirs at once, and the long ones are the same in the end.
TEST(Turns, AClientWithAllSlotsGivesSomeBack) {
  const Talk talk(engine_of(4, 100));
  const std::string whole = content_of(*talk.post(kChat, greedy(400)));
  Replies much;
  for (int i = 0; i < 6; ++i) much.push_back(queue_body(talk, "much", greedy(400)));
  wait_until_running(talk, 4);
  Replies little;
  for (const char* key : {"little", "other", "little"}) {
    little.push_back(queue_body(talk, key, greedy(3)));
    EXPECT_TRUE(little.back()->wait());
    EXPECT_EQ(little.back()->status(), 200);
  }
  EXPECT_EQ(std::count_if(much.begin(), much.end(), [](const auto& reply) { return reply->wait(0); }), 0);
  EXPECT_GE(talk.service->engine().metrics().preemptions, 1);
  for (const auto& reply : much) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(content_of(*reply), whole);
  }
  talk.expect_nothing_held();
}

// Two clients that both want all have half each, and neither gives way to the other any more.
TEST(Turns, EqualSharesAreLeftAlone) {
  const Talk talk(engine_of(4, 100));
  Replies replies;
  for (int i = 0; i < 5; ++i) replies.push_back(queue_body(talk, "one", greedy(120)));
  wait_until_running(talk, 4);
  for (int i = 0; i < 5; ++i) replies.push_back(queue_body(talk, "two", greedy(120)));
  for (const auto& reply : replies) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200);
    EXPECT_EQ(content_of(*reply), content_of(*replies.front()));
  }
  EXPECT_LE(talk.service->engine().metrics().preemptions, 2);
  talk.expect_nothing_held();
}

// What is paused ends like everything else: its client hangs up, or its time is over.
TEST(Turns, PausedRequestsCanEnd) {
  ServiceOptions options = Talk::service_options();
  const Talk talk(engine_of(2, 100), options);
  Replies much;
  for (int i = 0; i < 2; ++i) much.push_back(queue_body(talk, "much", greedy(900)));
  wait_until_running(talk, 2);
  const auto other = queue_body(talk, "other", greedy(150));
  for (int i = 0; i < 30'000 && talk.service->engine().metrics().preemptions == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(talk.service->engine().metrics().preemptions, 1);
  for (const auto& reply : much) reply->hang_up();
  EXPECT_TRUE(other->wait());
  EXPECT_EQ(other->status(), 200);
  talk.expect_nothing_held();
  EXPECT_EQ(talk.post(kChat, greedy(3))->status(), 200);
}

// The engine does not run in these: what ends, ends in the queue.
TEST(Turns, AHangUpLeavesTheQueue) {
  const Talk talk(engine_of(1, 100), Talk::service_options(), false);
  const auto first = queue_for(talk, "a", 2), second = queue_for(talk, "a", 2);
  second->hang_up();
  for (int i = 0; i < 3000 && talk.service->counters().generations > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(talk.service->counters().generations, 1);
  EXPECT_EQ(talk.service->metrics().waiting, 1);
  EXPECT_EQ(talk.service->metrics().ended_cancelled, 1);
  talk.service->start();
  EXPECT_TRUE(first->wait());
  EXPECT_EQ(first->status(), 200);
  talk.expect_nothing_held();
}

TEST(Turns, ADeadlineHoldsInTheQueue) {
  ServiceOptions options = Talk::service_options();
  options.timeout = 0.1;
  const Talk talk(engine_of(1, 100), options, false);
  const auto first = queue_for(talk, "a", 2);
  const auto second = talk.send("POST", kChat, chat(2).insert(1, R"("n":3,"stream":true,)"));
  EXPECT_TRUE(second->wait());
  EXPECT_EQ(second->status(), 504);
  EXPECT_EQ(talk.service->metrics().ended_deadline, 1);
  // Time in the queue counts for what the engine has, too.
  talk.service->start();
  EXPECT_TRUE(first->wait());
  EXPECT_EQ(first->status(), 504);
  talk.expect_nothing_held();
}

TEST(Turns, AllCanBeCancelled) {
  const Talk talk(engine_of(2, 100));
  Replies replies;
  for (int i = 0; i < 6; ++i) replies.push_back(queue_for(talk, "a", 900));
  talk.service->set_draining();
  talk.service->cancel_all();
  for (const auto& reply : replies) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 503);
  }
  talk.expect_nothing_held();
}

}  // namespace
}  // namespace mdi
