// Clients that hang up, stop reading, or are cut off when the server ends.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "raw_client.h"
#include "test_server.h"

namespace mdi {
namespace {

std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"; }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(HttpGone, AHangUpIsSeenWhileTheHandlerComputes) {
  TestServer s;
  for (const bool reset : {false, true}) {
    for (const char* path : {"/hold", "/stream"}) {
      const size_t before = s.held_count();
      const int gone = s.gone;
      RawClient c(s.port());
      c.send(get(path));
      ASSERT_TRUE(becomes_true([&] { return s.held_count() == before + 1; }));
      EXPECT_FALSE(s.held(before)->gone());
      const auto start = std::chrono::steady_clock::now();
      reset ? c.reset() : c.hang_up();
      ASSERT_TRUE(becomes_true([&] { return s.gone == gone + 1; })) << path << reset;
      EXPECT_LT(seconds_since(start), 0.5);
      EXPECT_TRUE(s.held(before)->gone());
      EXPECT_FALSE(s.held(before)->write("x"));
      s.held(before)->send(200, "text/plain", "too late");
      s.held(before)->end();
    }
  }
  EXPECT_EQ(s.counters().gone_hangup, 4);
  EXPECT_TRUE(becomes_true([&] { return s.counters().connections == 0 && s.counters().answering == 0; }));
}

TEST(HttpGone, AnEndOfTheSendingHalfIsAHangUpUnlessTheAnswerIsWritten) {
  TestServer s;
  RawClient c(s.port());
  c.send(get("/hold"));
  c.half_close();
  EXPECT_TRUE(becomes_true([&] { return s.gone == 1; }));
  RawClient quick(s.port());
  quick.send(get("/large"));
  quick.half_close();
  EXPECT_GT(quick.rest().size(), size_t{8} << 20);
  EXPECT_TRUE(quick.ended());
}

TEST(HttpGone, AHangUpIsSeenBehindMuchSentAhead) {
  HttpOptions o;
  o.max_header_bytes = 4000;
  TestServer s(o);
  RawClient c(s.port());
  c.send(get("/hold"));
  for (int i = 0; i < 500; ++i) c.send(get("/hello"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(s.gone, 0);
  c.hang_up();
  EXPECT_TRUE(becomes_true([&] { return s.gone == 1; }));
}

TEST(HttpGone, ToRegisterLateIsToldAtOnce) {
  TestServer s;
  RawClient c(s.port());
  c.send(get("/hold"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  c.hang_up();
  ASSERT_TRUE(becomes_true([&] { return s.gone == 1; }));
  int told = 0;
  s.held(0)->on_gone([&told] { ++told; });
  EXPECT_EQ(told, 1);
}

TEST(HttpGone, NothingIsToldAfterAWholeAnswer) {
  TestServer s;
  RawClient c(s.port());
  c.send(get("/hold"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  s.held(0)->send(200, "text/plain", "done");
  EXPECT_NE(c.answer().find("done"), std::string::npos);
  c.hang_up();
  ASSERT_TRUE(becomes_true([&] { return s.counters().connections == 0; }));
  EXPECT_EQ(s.gone, 0);
  EXPECT_FALSE(s.held(0)->gone());
}

TEST(HttpGone, WhoDoesNotReadIsDroppedAndOthersGoOn) {
  HttpOptions o;
  o.max_backlog_bytes = 100000;
  TestServer s(o);
  RawClient stalled(s.port(), 4096), reader(s.port());
  stalled.send(get("/stream"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  reader.send(get("/stream"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 2; }));
  const std::string text(1000, 'x');
  bool alive = true;
  for (int i = 0; i < 2000 && alive; ++i) {
    alive = s.held(0)->write(text);
    ASSERT_TRUE(s.held(1)->write(text));
    ASSERT_NE(reader.until(text + "\r\n").find(text), std::string::npos);
  }
  EXPECT_FALSE(alive);
  EXPECT_TRUE(becomes_true([&] { return s.gone == 1; }));
  EXPECT_EQ(s.counters().gone_backlog, 1);
  EXPECT_TRUE(s.held(1)->write("still here"));
  EXPECT_NE(reader.until("still here").find("still here"), std::string::npos);
  EXPECT_TRUE(becomes_true([&] { return s.counters().backlog_bytes == 0; }));
}

TEST(HttpGone, WhoDoesNotReadForLongIsDroppedBelowTheBacklogToo) {
  HttpOptions o;
  o.write_seconds = 0.4;
  o.max_backlog_bytes = size_t{64} << 20;
  TestServer s(o);
  RawClient stalled(s.port(), 4096), large(s.port(), 4096);
  stalled.send(get("/stream"));
  large.send(get("/large"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  ASSERT_TRUE(s.held(0)->write(std::string(2 << 20, 'x')));
  EXPECT_TRUE(becomes_true([&] { return s.gone == 1 && s.counters().gone_timeout == 2; }));
  EXPECT_EQ(s.counters().backlog_bytes, 0);
}

// The system gives up on them at about the same time: that is no hang-up either.
TEST(HttpGone, WhoDoesNotReadHasNotHungUp) {
  constexpr size_t kClients = 16;
  HttpOptions o;
  o.write_seconds = 0.5;
  o.max_backlog_bytes = size_t{64} << 20;
  TestServer s(o);
  std::vector<std::unique_ptr<RawClient>> stalled;
  for (size_t i = 0; i < kClients; ++i) {
    stalled.push_back(std::make_unique<RawClient>(s.port(), 4096));
    stalled.back()->send(get("/stream"));
  }
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == kClients; }));
  EXPECT_TRUE(becomes_true([&] {
    for (size_t i = 0; i < kClients; ++i) s.held(i)->write(std::string(32 << 10, 'x'));
    return s.gone == static_cast<int>(kClients);
  }));
  EXPECT_EQ(s.counters().gone_timeout, static_cast<int64_t>(kClients));
  EXPECT_EQ(s.counters().gone_hangup, 0);
}

TEST(HttpGone, ADrainWaitsForOpenAnswersAndTakesNothingNew) {
  TestServer s;
  RawClient open(s.port()), idle(s.port()), half(s.port());
  open.send(get("/stream"));
  half.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345");
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1 && s.counters().requests == 2; }));
  const uint16_t port = s.port();
  auto drained = std::async(std::launch::async, [&s] { return s.server.drain(10); });
  EXPECT_EQ(half.until("\r\n").rfind("HTTP/1.1 503", 0), 0u);
  RawClient late(port);
  late.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1");
  EXPECT_EQ(late.until("\r\n").rfind("HTTP/1.1 503", 0), 0u);
  // What has no body, such as a question for health, is still answered, on old and new connections; then they close.
  RawClient asks(port);
  for (RawClient* client : {&idle, &asks}) {
    client->send(get("/hello"));
    const std::string answer = client->rest();
    EXPECT_EQ(answer.rfind("HTTP/1.1 200", 0), 0u) << answer;
    EXPECT_NE(answer.find("close"), std::string::npos) << answer;
    EXPECT_TRUE(client->ended());
  }
  EXPECT_TRUE(s.held(0)->write("the last words"));
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  s.held(0)->end();
  EXPECT_NE(open.rest().find("the last words\r\n0\r\n\r\n"), std::string::npos);
  open.hang_up();
  EXPECT_EQ(drained.get(), 0);
  EXPECT_EQ(s.gone, 0);
}

TEST(HttpGone, ADrainEndsInTimeAndTellsWhoeverIsCut) {
  TestServer s;
  RawClient open(s.port());
  open.send(get("/hold"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(s.server.drain(0.2), 1);
  EXPECT_LT(seconds_since(start), 2);
  EXPECT_EQ(s.gone, 1);
  EXPECT_TRUE(open.ends());
  EXPECT_EQ(s.counters().gone_stopped, 1);
  s.held(0)->send(200, "text/plain", "after the end");
}

// Whoever goes on asking does not make it longer.
TEST(HttpGone, ADrainDoesNotWaitForWhatComesLate) {
  TestServer s;
  RawClient open(s.port()), late(s.port());
  open.send(get("/stream"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  auto drained = std::async(std::launch::async, [&s] { return s.server.drain(60); });
  EXPECT_TRUE(becomes_true([&] {
    RawClient probe(s.port());
    probe.send(get("/hello"));
    return probe.until("\r\n\r\n").find("close") != std::string::npos;
  }));
  late.send(get("/hold"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 2; }));
  s.held(0)->end();
  open.rest();
  open.hang_up();
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(HttpGone, StopInterruptsADrain) {
  TestServer s;
  RawClient open(s.port());
  open.send(get("/hold"));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  auto drained = std::async(std::launch::async, [&s] { return s.server.drain(60); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  s.server.stop();
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(s.gone, 1);
}

TEST(HttpGone, RepliesMayOutliveTheServer) {
  std::shared_ptr<HttpReply> kept;
  {
    TestServer s;
    RawClient c(s.port());
    c.send(get("/stream"));
    ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
    kept = s.held(0);
  }
  EXPECT_TRUE(kept->gone());
  EXPECT_FALSE(kept->write("x"));
  kept->end();
}

TEST(HttpGone, ManyWritersAtOnce) {
  TestServer s;
  constexpr int kStreams = 16, kWrites = 300;
  std::vector<RawClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(s.port());
    clients.back().send(get("/stream"));
    ASSERT_TRUE(becomes_true([&] { return s.held_count() == static_cast<size_t>(i) + 1; }));
  }
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&s, t] {
      for (int w = 0; w < kWrites; ++w) {
        for (int i = t; i < kStreams; i += 4) s.held(static_cast<size_t>(i))->write("w" + std::to_string(w) + ";");
      }
      for (int i = t; i < kStreams; i += 4) s.held(static_cast<size_t>(i))->end();
    });
  }
  clients.front().hang_up();
  for (auto& w : writers) w.join();
  for (int i = 1; i < kStreams; ++i) {
    const std::string all = clients[static_cast<size_t>(i)].until("\r\n0\r\n\r\n");
    for (int w = 0; w < kWrites; ++w) {
      ASSERT_NE(all.find("\nw" + std::to_string(w) + ";"), std::string::npos) << i << " " << w;
    }
  }
}

TEST(HttpListening, AUsedPortAndAUsedSocketAreOneClearError) {
  TestServer s;
  HttpOptions o;
  o.port = s.port();
  HttpServer second(o, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {});
  try {
    second.listen();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "127.0.0.1:" + std::to_string(s.port()) + ": in use by another process");
  }
  o.host = "somewhere.example";
  EXPECT_THROW(HttpServer(o, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {}), Error);
}

TEST(HttpListening, ASocketFile) {
  const std::string path = testing::TempDir() + "mdi_http_" + std::to_string(getpid()) + ".sock";
  HttpOptions o;
  o.unix_path = path;
  {
    TestServer s(o);
    struct stat st {};
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    RawClient c(path);
    c.send(get("/hello"));
    EXPECT_NE(c.answer().find("hello"), std::string::npos);
    EXPECT_EQ(s.requests().at(0).peer, "unix");
    EXPECT_EQ(s.server.address(), "unix:" + path);
    HttpServer second(o, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {});
    EXPECT_THROW(second.listen(), Error);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "the file goes with the server";
  // Left behind by a process that was killed: bound, and nobody listens.
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::strncpy(a.sun_path, path.c_str(), sizeof a.sun_path - 1);
  ASSERT_EQ(bind(stale, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  close(stale);
  {
    TestServer s(o);
    EXPECT_TRUE(RawClient(path).connected());
  }
  o.unix_path = testing::TempDir();
  HttpServer folder(o, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {});
  EXPECT_THROW(folder.listen(), Error);
}

}  // namespace
}  // namespace mdi
