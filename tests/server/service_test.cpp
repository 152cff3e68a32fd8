// What keeps requests apart from one another: errors, limits, hang-ups, ends.
#include "server/service.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "server/health.h"
#include "server/worker_pool.h"
#include "talk.h"

namespace mdi {
namespace {

using testing::KeptReply;
using testing::Talk;

constexpr const char* kChat = "/v1/chat/completions";

std::string long_chat(const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":"Tell me all."}],"max_tokens":900,"ignore_eos":true)" + more + "}";
}

TEST(Routes, UnknownPathsAndMethods) {
  const Talk talk;
  auto reply = talk.send("GET", "/nowhere", "");
  EXPECT_EQ(reply->status(), 404);
  EXPECT_EQ(reply->json()["error"]["code"], "unknown_url");
  reply = talk.send("GET", kChat, "");
  EXPECT_EQ(reply->status(), 405);
  EXPECT_EQ(reply->header("allow"), "POST, OPTIONS");
  reply = talk.send("OPTIONS", "/v1/models", "");
  EXPECT_EQ(reply->status(), 204);
  EXPECT_EQ(reply->header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(talk.send("HEAD", "/v1/models", "")->status(), 200);
  reply = talk.send("GET", "/openapi.json", "");
  EXPECT_EQ(reply->json()["openapi"], "3.1.0");
}

// Each route that a client can find in the published file answers, and the other way round.
TEST(Routes, TheOpenApiFileListsThem) {
  const Talk talk;
  const OrderedJson paths = talk.send("GET", "/openapi.json", "")->json()["paths"];
  EXPECT_GE(paths.size(), 9u);
  for (const auto& [path, item] : paths.items()) {
    std::string wanted = path;
    if (wanted == "/v1/models/{id}") wanted = "/v1/models/small";
    if (wanted == "/metrics" || wanted == "/") continue;  // added by the program that serves
    std::string allowed;
    talk.router->find("TRACE", wanted, &allowed);
    for (const auto& [method, operation] : item.items()) {
      std::string upper;
      for (const char c : method) upper += static_cast<char>(std::toupper(c));
      EXPECT_NE(allowed.find(upper), std::string::npos) << method << " " << path;
    }
  }
}

TEST(Errors, ContextTooLongSaysTheNumbers) {
  const Talk talk;
  auto reply = talk.post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5000})");
  EXPECT_EQ(reply->status(), 400);
  OrderedJson error = reply->json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "max_tokens");
  EXPECT_NE(error["message"].get<std::string>().find("maximum context length is 1024 tokens"), std::string::npos);
  std::string words;
  for (int i = 0; i < 1100; ++i) words += "ship ";
  for (const std::string& text : {words, std::string(1 << 20, 'x')}) {
    reply = talk.post(kChat, OrderedJson({{"messages", {{{"role", "user"}, {"content", text}}}}}).dump());
    EXPECT_EQ(reply->status(), 400);
    EXPECT_EQ(reply->json()["error"]["code"], "context_length_exceeded") << reply->body();
    EXPECT_EQ(reply->json()["error"]["param"], "messages");
  }
  reply = talk.post(kChat, R"({"model":"other","messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(reply->status(), 404);
  EXPECT_EQ(reply->json()["error"]["code"], "model_not_found");
  EXPECT_EQ(talk.service->counters().errors[static_cast<size_t>(ApiErrorKind::kNotFound)], 1);
  talk.expect_nothing_held();
}

// Whatever is sent, the answer is the client's fault or an answer, and the next client is served.
TEST(Errors, NothingThatIsSentEndsTheService) {
  const Talk talk;
  const std::string bodies[] = {
      "",
      "null",
      "{}",
      R"({"messages":[]})",
      R"({"messages":[{"role":"user","content":[]}],"max_tokens":1})",
      R"({"model":"small","max_tokens":1,"messages":[{"role":"user","content":[]}]})",
      R"({"model":"small","max_tokens":1,"messages":[{"role":"assistant","content":[]}]})",
      R"({"model":"small","max_tokens":1,"messages":[{"role":"system","content":[]}]})",
      R"({"messages":[{"role":"assistant","content":"","prefix":true}],"max_tokens":1})",
      R"({"messages":[{"role":"system","content":""}],"max_tokens":1})",
      R"({"messages":[{"role":"tool","tool_call_id":"x","content":""}],"max_tokens":1})",
      R"({"messages":[{"role":"latest_reminder","content":""}],"max_tokens":1})",
      R"({"messages":[{"role":"user","content":"a","task":"title"}],"max_tokens":1})",
      R"({"messages":[{"role":"user","content":"<|x|></think>\u0000"}],"max_tokens":1,"reasoning_effort":1})",
      R"({"prompt":[],"max_tokens":1})",
      R"({"prompt":[[]],"max_tokens":1})",
      R"({"tokens":[]})",
      R"({"prompt":""})",
  };
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
                           "/tokenize", "/detokenize"}) {
    for (const std::string& body : bodies) {
      const auto reply = talk.post(path, body);
      EXPECT_TRUE(reply->status() == 200 || reply->status() == 400) << path << " " << body << " " << reply->body();
    }
  }
  EXPECT_EQ(talk.chat(R"({"messages":[{"role":"user","content":"Hello!"}],"max_tokens":1})")["choices"].size(), 1u);
  talk.expect_nothing_held();
}

TEST(HangUp, StopsPlainAndStreamedGenerations) {
  const Talk talk;
  for (const char* stream : {"", R"(,"stream":true)"}) {
    for (const char* n : {"", R"(,"n":3)"}) {
      const int64_t before = talk.service->engine().metrics().ended_cancelled;
      const auto reply = talk.send("POST", kChat, long_chat(std::string(stream) + n));
      for (int i = 0; i < 5000 && talk.service->engine().metrics().running == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      const int64_t tokens = talk.service->engine().metrics().generated_tokens;
      reply->hang_up();
      talk.expect_nothing_held();
      EXPECT_GT(talk.service->engine().metrics().ended_cancelled, before) << stream << n;
      EXPECT_LT(talk.service->engine().metrics().generated_tokens - tokens, 600);
    }
  }
}

TEST(HangUp, BeforeAnythingWasDone) {
  const Talk talk;
  HttpRequest request;
  request.method = "POST";
  request.path = kChat;
  request.body = long_chat();
  const auto reply = std::make_shared<KeptReply>();
  reply->hang_up();
  talk.router->handle(std::move(request), reply);
  talk.expect_nothing_held();
  EXPECT_EQ(talk.service->engine().metrics().submitted, 0);
}

TEST(Limits, AFullQueueIs429) {
  EngineOptions engine = Talk::engine_options();
  engine.max_queue = 2;
  engine.slots = 1;
  const Talk talk(engine, Talk::service_options(), false);  // nothing runs yet
  std::vector<std::shared_ptr<KeptReply>> replies;
  for (int i = 0; i < 3; ++i) {  // one is the engine's already
    replies.push_back(talk.send("POST", kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})"));
    while (!replies.back()->registered()) std::this_thread::yield();
  }
  const auto refused = talk.post(kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(refused->status(), 429);
  EXPECT_EQ(refused->header("retry-after"), "1");
  EXPECT_EQ(refused->json()["error"]["type"], "rate_limit_error");
  // A request of several prompts is refused as a whole.
  const auto several = talk.post("/v1/completions", R"({"prompt":["a","b","c"]})");
  EXPECT_EQ(several->status(), 429);
  talk.service->start();
  for (const auto& reply : replies) {
    EXPECT_TRUE(reply->wait());
    EXPECT_EQ(reply->status(), 200);
  }
  talk.expect_nothing_held();
}

TEST(Limits, OneClientsShare) {
  ServiceOptions options = Talk::service_options();
  options.max_running_per_client = 1;
  const Talk talk(Talk::engine_options(), options, false);
  const auto first = talk.send("POST", kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})");
  while (!first->registered()) std::this_thread::yield();
  const auto second = talk.post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})");
  EXPECT_EQ(second->status(), 429);
  const auto other =
      talk.send("POST", kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2})", "another");
  talk.service->start();
  EXPECT_TRUE(first->wait() && other->wait());
  EXPECT_EQ(other->status(), 200);
  talk.expect_nothing_held();
}

TEST(Limits, TheServersOwnDeadline) {
  ServiceOptions options = Talk::service_options();
  options.timeout = 0.05;
  const Talk talk(Talk::engine_options(), options);
  const auto plain = talk.post(kChat, long_chat());
  EXPECT_EQ(plain->status(), 504);
  EXPECT_EQ(plain->json()["error"]["type"], "timeout_error");
  const auto streamed = talk.post(kChat, long_chat(R"(,"stream":true)"));
  if (streamed->status() == 200) {  // begun in time: the error is the last event
    EXPECT_EQ(testing::events_of(streamed->body()).back()["error"]["type"], "timeout_error");
  } else {
    EXPECT_EQ(streamed->status(), 504);
  }
  talk.expect_nothing_held();
}

TEST(Ends, TheServicesEndEndsWhatRuns) {
  std::shared_ptr<KeptReply> plain, streamed;
  {
    Talk talk;
    plain = talk.send("POST", kChat, long_chat());
    streamed = talk.send("POST", kChat, long_chat(R"(,"stream":true)"));
    EXPECT_TRUE(streamed->wait_for_text());
    while (!plain->registered()) std::this_thread::yield();
    EXPECT_EQ(talk.send("GET", "/ready", "")->status(), 200);
    talk.service->set_draining();
    EXPECT_EQ(talk.send("GET", "/ready", "")->status(), 503);
    EXPECT_EQ(talk.send("GET", "/health", "")->status(), 200);
    EXPECT_EQ(talk.post(kChat, long_chat())->status(), 503);
  }
  EXPECT_TRUE(plain->wait(1));
  EXPECT_EQ(plain->status(), 503);
  EXPECT_TRUE(streamed->wait(1));
  EXPECT_EQ(testing::events_of(streamed->body()).back()["error"]["code"], "cancelled");
}

TEST(Setup, AModelWithoutTokenizerIsRefused) {
  testing::Talk talk;
  LoadedModel& m = testing::small_model();
  EXPECT_THROW(Service(*m.context, m.model, nullptr, Talk::engine_options(), Talk::service_options()), Error);
  ServiceOptions bad = Talk::service_options();
  for (const std::string& name :
       {std::string(), std::string("two\nlines"), std::string("\xff"), std::string(1025, 'x')}) {
    bad.model_name = name;
    EXPECT_THROW(Service(*m.context, m.model, &*m.tokenizer, Talk::engine_options(), bad), Error) << name;
  }
  bad = Talk::service_options();
  bad.effort = 0;
  EXPECT_THROW(Service(*m.context, m.model, &*m.tokenizer, Talk::engine_options(), bad), Error);
}

TEST(Workers, ClientsTakeTurns) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  std::vector<std::string> order;
  WorkerPool pool(1, 100);  // its jobs use what stands above
  const auto job = [&](const std::string& name) {
    return [&, name] {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return go; });
      order.push_back(name);
      wake.notify_all();
    };
  };
  // Holds the other place, so that jobs run in the order in which they are taken.
  const auto hold = [&] {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return order.size() == 52; });
  };
  EXPECT_EQ(pool.post("c", hold), WorkerPool::Post::kTaken);
  EXPECT_EQ(pool.post("a", job("a0")), WorkerPool::Post::kTaken);
  while (pool.counters().running < 2) std::this_thread::yield();
  for (int i = 1; i <= 50; ++i) pool.post("a", job("a" + std::to_string(i)));
  EXPECT_EQ(pool.post("a", job("too many")), WorkerPool::Post::kClientFull);
  EXPECT_EQ(pool.post("b", job("b")), WorkerPool::Post::kTaken);
  std::vector<std::string> expected = {"a0", "a1", "b"};  // not behind the fifty that came before it
  for (int i = 2; i <= 50; ++i) expected.push_back("a" + std::to_string(i));
  std::unique_lock lock(mutex);
  go = true;
  wake.notify_all();
  wake.wait(lock, [&] { return order.size() == 52; });
  EXPECT_EQ(order, expected);
}

TEST(Workers, OneClientLeavesAThreadFree) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false, b_done = false;
  WorkerPool pool(2, 100);
  const auto slow = [&] {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return go; });
  };
  for (int i = 0; i < 10; ++i) pool.post("a", slow);
  pool.post("b", [&] {
    const std::lock_guard lock(mutex);
    b_done = true;
    wake.notify_all();
  });
  std::unique_lock lock(mutex);
  EXPECT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return b_done; }));
  go = true;
  wake.notify_all();
}

// What takes long, of whichever client, leaves a thread to the rest: also to its own client's, and however few threads
// were asked for.
void expect_room_beside_large_jobs(int threads) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  int small_done = 0, large_done = 0;
  WorkerPool pool(threads, 100);
  for (int i = 0; i < 4; ++i) {
    pool.post(
        i % 2 == 0 ? "a" : "b",
        [&] {
          std::unique_lock lock(mutex);
          wake.wait(lock, [&] { return go; });
          ++large_done;
          wake.notify_all();
        },
        true);
  }
  for (const char* client : {"a", "b"}) {
    pool.post(client, [&] {
      const std::lock_guard lock(mutex);
      ++small_done;
      wake.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  EXPECT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return small_done == 2; }));
  EXPECT_EQ(large_done, 0);
  go = true;
  wake.notify_all();
  EXPECT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return large_done == 4; }));
}

TEST(Workers, LargeJobsLeaveAThreadFree) {
  expect_room_beside_large_jobs(3);
  expect_room_beside_large_jobs(1);
}

// Jobs that wait for other machines, of several clients and more than there are places for, hold nobody up.
TEST(Workers, JobsThatStepAsideLeaveTheirPlaces) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  int aside_done = 0, refused = 0, others_done = 0;
  WorkerPool pool(2, 100, 8);
  const auto waiting = [&] {
    const bool done = pool.step_aside([&] {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return go; });
    });
    const std::lock_guard lock(mutex);
    ++(done ? aside_done : refused);
    wake.notify_all();
  };
  const auto quick = [&] {
    const std::lock_guard lock(mutex);
    ++others_done;
    wake.notify_all();
  };
  // One client gets half of the places aside, also with large jobs, and hears at once that it has them.
  for (int i = 0; i < 6; ++i) pool.post("a", waiting, i % 2 == 1);
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return refused == 2; }));
  }
  pool.post("b", waiting);
  pool.post("c", waiting);
  while (pool.counters().aside < 6) std::this_thread::yield();
  for (const char* client : {"a", "b", "d"}) pool.post(client, quick);
  std::unique_lock lock(mutex);
  EXPECT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return others_done == 3; }));
  EXPECT_EQ(aside_done, 0);
  go = true;
  wake.notify_all();
  EXPECT_TRUE(wake.wait_for(lock, std::chrono::seconds(20), [&] { return aside_done == 6; }));
  lock.unlock();
  while (pool.counters().done < 11) std::this_thread::yield();
  const WorkerCounters counters = pool.counters();
  EXPECT_EQ(counters.running, 0);
  EXPECT_EQ(counters.aside, 0);
}

// However many come back from aside, they take their places again before new jobs do, and never more than there are.
TEST(Workers, JobsComeBackIntoTheirPlaces) {
  std::atomic<int> working{0}, most{0}, back{0};
  std::atomic<bool> go{false};
  WorkerPool pool(2, 1000, 8);
  const auto work = [&] {
    const int now = ++working;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --working;
  };
  for (const char* client : {"a", "a", "b", "b", "c", "c"}) {
    pool.post(client, [&] {
      EXPECT_TRUE(pool.step_aside([&] {
        while (!go) std::this_thread::yield();
      }));
      work();
      ++back;
    });
  }
  while (pool.counters().aside < 6) std::this_thread::yield();
  for (int i = 0; i < 300; ++i) pool.post(i % 2 == 0 ? "d" : "e", work);
  go = true;
  while (back < 6) std::this_thread::yield();
  EXPECT_GT(pool.counters().waiting, 100);
  while (pool.counters().done < 306) std::this_thread::yield();
  EXPECT_LE(most, 2);
}

TEST(Workers, WhatIsThrownAsideIsTheJobs) {
  std::atomic<bool> caught{false};
  WorkerPool pool(1, 10, 2);
  pool.post("a", [&] {
    try {
      pool.step_aside([] { throw Error("here", "no answer"); });
    } catch (const Error&) {
      caught = true;
    }
  });
  while (pool.counters().done < 1) std::this_thread::yield();
  EXPECT_TRUE(caught);
  bool ran = false;
  EXPECT_TRUE(pool.step_aside([&] { ran = true; }));  // no job: nothing to give up
  EXPECT_TRUE(ran);
}

TEST(Routes, CanBeHandledByAWorker) {
  const Talk talk;
  std::thread::id where;
  talk.router->add(
      by_worker(*talk.service, {.method = "GET",
                                .path = "/where",
                                .handler = [&where](const HttpRequest&, const std::shared_ptr<HttpReply>& to) {
                                  where = std::this_thread::get_id();
                                  to->send(200, "text/plain", "here");
                                }}));
  const auto reply = talk.send("GET", "/where", "");
  EXPECT_TRUE(reply->wait());
  EXPECT_EQ(reply->body(), "here");
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(Clients, AreWhoWasLetInOrHosts) {
  HttpRequest request;
  request.peer = "10.0.0.1:4000";
  EXPECT_EQ(client_of(request), "10.0.0.1");
  request.headers = {{"authorization", "Bearer anything"}, {"x-api-key", "anything"}};
  EXPECT_EQ(client_of(request), "10.0.0.1") << "a header that nobody has checked";
  request.client = "key 12";
  EXPECT_EQ(client_of(request), "key 12");
}

}  // namespace
}  // namespace mdi
