// What is not answered: malformed requests, requests that two readers would read differently, limits.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "raw_client.h"
#include "test_server.h"

namespace mdi {
namespace {

// The status of the answer to these bytes, and that nothing behind them was taken for a request.
int status_of(TestServer& s, const std::string& bytes, bool must_close = true) {
  const size_t before = s.requests().size();
  RawClient c(s.port());
  c.send(bytes);
  const std::string a = c.until("\r\n\r\n", 3);
  if (must_close) {
    EXPECT_NE(a.find("connection: close\r\n"), std::string::npos) << bytes << a;
    EXPECT_TRUE(c.ends()) << bytes;
  }
  EXPECT_EQ(s.requests().size(), before) << bytes;
  return a.rfind("HTTP/1.1 ", 0) == 0 ? std::stoi(a.substr(9)) : 0;
}

TEST(HttpRefusals, WhatIsNotHttp) {
  TestServer s;
  for (const std::string bytes : {
           "hello there\r\n\r\n",
           "\x16\x03\x01\x02 a TLS client\r\n\r\n",
           "GET\r\n\r\n",
           "GET  /hello HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /hello\r\n\r\n",
           "GET /hello HTTP/1.1\r\nHost : a\r\n\r\n",
           "GET /hello HTTP/1.1\r\n: a\r\n\r\n",
           "GET /hello HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
           "GET /hello HTTP/1.1\r\nHost: a\r\nX: a\x01z\r\n\r\n",
           "GET /hello HTTP/1.1\r\nHost: a\r\nX: one\r\n two\r\n\r\n",
           "G(T /hello HTTP/1.1\r\nHost: a\r\n\r\n",
       }) {
    EXPECT_EQ(status_of(s, bytes), 400) << bytes;
  }
  EXPECT_EQ(status_of(s, "GET /hello HTTP/3.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(status_of(s, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(status_of(s, "CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n"), 501);
  EXPECT_EQ(s.counters().malformed, 14);
}

// A bare line feed ends no line, and whoever sends one is told that, not that their version is another.
TEST(HttpRefusals, BareLineFeeds) {
  TestServer s;
  for (const std::string bytes :
       {"GET /hello HTTP/1.1\nHost: a\n\n", "GET /hello HTTP/1.1\nHost: a\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\n\n", "GET /hello HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"}) {
    RawClient c(s.port());
    c.send(bytes);
    const std::string a = c.rest(1);
    EXPECT_EQ(a.rfind("HTTP/1.1 400 ", 0), 0u) << bytes << a;
    EXPECT_NE(a.find("line feed"), std::string::npos) << bytes << a;
  }
  EXPECT_TRUE(s.requests().empty());
  // One of a body says nothing about the head.
  EXPECT_EQ(status_of(s, "GET /hello HTTP/3.0\r\nHost: a\r\n\r\n{\n}"), 505);
}

TEST(HttpRefusals, Hosts) {
  TestServer s;
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\nHost:\r\n\r\n"), 400);
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\nHost: a b\r\n\r\n"), 400);
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400);
}

TEST(HttpRefusals, Targets) {
  TestServer s;
  for (const std::string target : {"hello", "/a%", "/a%2", "/a%zz", "/a%00b", "/a%0ab", "/a%ff", "/a%c0%af", "/a/../b",
                                   "/%2e%2e/b", "/.", "/a#b", "*"}) {
    EXPECT_EQ(status_of(s, "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n"), 400) << target;
  }
  RawClient c(s.port());
  c.send("GET http://a.example/echo?x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(c.answer().find("GET /echo?x"), std::string::npos);
  c.send("GET /%65cho HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(c.answer().find("GET /echo?"), std::string::npos);
}

TEST(HttpRefusals, SmugglingShapes) {
  TestServer s;
  const std::string begin = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  const std::string second = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const std::string framing : {
           "Content-Length: 4\r\nContent-Length: 4\r\n",
           "Content-Length: 4\r\nContent-Length: 5\r\n",
           "Content-Length: 4, 4\r\n",
           "Content-Length: +4\r\n",
           "Content-Length: -4\r\n",
           "Content-Length: 0x4\r\n",
           "Content-Length: 4 4\r\n",
           "Content-Length: \r\n",
           "Content-Length: 99999999999999999999999\r\n",
           "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding : chunked\r\n",
           "Transfer-Encoding:\r\n chunked\r\n",
           "Content-Length: 4\r\n\tx: y\r\n",
       }) {
    EXPECT_EQ(status_of(s, begin + framing + "\r\n0\r\n\r\n" + second), 400) << framing;
  }
  for (const std::string coding : {"identity", "xchunked", "gzip, chunked", "chunked, identity", "\"chunked\""}) {
    const int status = status_of(s, begin + "Transfer-Encoding: " + coding + "\r\n\r\n0\r\n\r\n" + second);
    EXPECT_TRUE(status == 501 || status == 400) << coding << status;
  }
  EXPECT_EQ(status_of(s, "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second), 400);
  for (const std::string body : {"x\r\n", "4\nabcd\r\n0\r\n\r\n", "-1\r\n", "4 \r\nabcd\r\n0\r\n\r\n",
                                 "4\r\nabcdX\r\n0\r\n\r\n", "fffffffffffffffff\r\n"}) {
    const int status = status_of(s, begin + "Transfer-Encoding: chunked\r\n\r\n" + body + second);
    EXPECT_TRUE(status == 400 || status == 413) << body << status;
  }
}

TEST(HttpRefusals, HeaderLimits) {
  HttpOptions o;
  o.max_header_bytes = 2000;
  o.max_headers = 10;
  TestServer s(o);
  EXPECT_EQ(status_of(s, "GET /hello HTTP/1.1\r\nHost: a\r\nX: " + std::string(3000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of(s, "GET /" + std::string(3000, 'x')), 431);
  std::string many = "GET /hello HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 10; ++i) many += "X" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(status_of(s, many + "\r\n"), 431);
  // Line by line: the sum counts, not the line.
  RawClient c(s.port());
  c.send("GET /hello HTTP/1.1\r\nHost: a\r\n");
  for (int i = 0; i < 40; ++i) {
    c.send("X: " + std::string(95, 'y') + "\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(c.until("\r\n").rfind("HTTP/1.1 431", 0), 0u);
  // What fits is taken.
  RawClient ok(s.port());
  ok.send("GET /hello HTTP/1.1\r\nHost: a\r\nX: " + std::string(1900, 'x') + "\r\n\r\n");
  EXPECT_EQ(ok.answer().rfind("HTTP/1.1 200", 0), 0u);
}

TEST(HttpRefusals, BodyLimits) {
  HttpOptions o;
  o.max_body_bytes = 1000;
  o.max_header_bytes = 2000;
  TestServer s(o);
  const std::string begin = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of(s, begin + "Content-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(status_of(s, begin + "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n"), 413);
  EXPECT_EQ(status_of(s, begin + "Transfer-Encoding: chunked\r\n\r\n258\r\n" + std::string(600, 'x') + "\r\n258\r\n"),
            413);
  EXPECT_EQ(status_of(s, begin + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(5000, 'x')), 400);
  RawClient c(s.port());
  c.send(begin + "Content-Length: 1000\r\n\r\n" + std::string(1000, 'x'));
  EXPECT_EQ(c.answer().rfind("HTTP/1.1 200", 0), 0u);
}

TEST(HttpRefusals, ManyLargeBodiesTogetherAreTooMuch) {
  HttpOptions o;
  o.max_body_bytes = 100000;
  o.max_bodies_bytes = 150000;
  TestServer s(o);
  const std::string head = "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
  RawClient first(s.port());
  first.send(head + std::string(100000, 'x'));
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  EXPECT_EQ(s.counters().bodies_bytes, 100000);
  RawClient second(s.port());
  second.send(head + std::string(60000, 'x'));
  const std::string a = second.until("\r\n\r\n");
  EXPECT_EQ(a.rfind("HTTP/1.1 503", 0), 0u) << a;
  EXPECT_NE(a.find("retry-after: "), std::string::npos);
  s.held(0)->send(200, "text/plain", "done");
  EXPECT_NE(first.answer().find("done"), std::string::npos);
  EXPECT_TRUE(becomes_true([&] { return s.counters().bodies_bytes == 0; }));
}

TEST(HttpRefusals, AdmissionComesBeforeTheBody) {
  HttpOptions o;
  o.admit = [](HttpRequest& head) -> std::optional<HttpAnswer> {
    head.client = head.header("from");
    if (head.header("key") == "k") return std::nullopt;
    HttpAnswer no;
    no.status = 401;
    no.body = "no key for " + head.path;
    return no;
  };
  o.refusal = [](int status, std::string_view message, const HttpRequest& head) {
    HttpAnswer shape;
    shape.status = status;
    shape.body = "shape[" + std::string(message) + "] " + head.path;
    return shape;
  };
  TestServer s(o);
  RawClient c(s.port());
  c.send(
      "GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\nKey: k\r\nFrom: me\r\n\r\n"
      "GET /hello HTTP/1.1\r\nHost: a\r\nKey: k\r\n\r\n");
  const std::string no = c.answer();
  EXPECT_EQ(no.rfind("HTTP/1.1 401", 0), 0u);
  EXPECT_NE(no.find("no key for /hello"), std::string::npos);
  EXPECT_EQ(c.answer().rfind("HTTP/1.1 200", 0), 0u) << "without a body the connection goes on";
  EXPECT_EQ(c.answer().rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_EQ(s.requests().at(0).client, "me");
  EXPECT_EQ(s.requests().at(1).client, "") << "of a request, not of its connection";
  EXPECT_EQ(status_of(s, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"), 401);
  EXPECT_EQ(s.counters().refused_admit, 2);
  RawClient drop(s.port());
  drop.send("GET /drop HTTP/1.1\r\nHost: a\r\nKey: k\r\n\r\n");
  EXPECT_NE(drop.answer().find("shape[the request was dropped without an answer] /drop"), std::string::npos);
}

// A page that may read answers may read why it got none.
TEST(HttpRefusals, EveryAnswerHasTheHeadersOfItsRequest) {
  HttpOptions o;
  o.max_body_bytes = 100;
  o.body_seconds = 0.3;
  o.answer_headers = [](const HttpRequest& head) -> Headers {
    return {{"seen", std::string(head.header("origin")) + " " + head.path}};
  };
  o.admit = [](const HttpRequest& head) -> std::optional<HttpAnswer> {
    if (head.path != "/secret") return std::nullopt;
    return HttpAnswer{.status = 401, .body = "no"};
  };
  TestServer s(o);
  const auto expect = [&](int status, const std::string& path, const std::string& line, const std::string& headers) {
    RawClient c(s.port());
    c.send(line + " " + path + " HTTP/1.1\r\nHost: a\r\nOrigin: page\r\n" + headers + "\r\n");
    const std::string answer = c.until("\r\n\r\n");
    EXPECT_EQ(answer.rfind("HTTP/1.1 " + std::to_string(status), 0), 0u) << answer;
    const size_t at = answer.find("seen: page " + path + "\r\n");
    EXPECT_NE(at, std::string::npos) << answer;
    EXPECT_EQ(at, answer.rfind("seen: ")) << answer;
  };
  expect(200, "/hello", "GET", "");
  expect(200, "/stream", "GET", "");
  expect(401, "/secret", "POST", "Content-Length: 5\r\n");
  expect(408, "/echo", "POST", "Content-Length: 5\r\n");
  expect(413, "/echo", "POST", "Content-Length: 101\r\n");
  expect(415, "/echo", "POST", "Content-Encoding: gzip\r\nContent-Length: 1\r\n");
  expect(500, "/drop", "GET", "");
  expect(500, "/throw", "GET", "");
}

TEST(HttpRefusals, SlowClientsAreTold) {
  HttpOptions o;
  o.header_seconds = 0.3;
  o.body_seconds = 0.3;
  o.idle_seconds = 0.6;
  TestServer s(o);
  RawClient idle(s.port()), head(s.port()), body(s.port());
  head.send("GET /hel");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx");
  // Slow loris: a byte now and then does not extend the time.
  const auto start = std::chrono::steady_clock::now();
  std::string said;
  while (said.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(3)) {
    head.send("x");
    said = head.until("\r\n", 0.05);
  }
  EXPECT_EQ(said.rfind("HTTP/1.1 408", 0), 0u);
  EXPECT_EQ(body.until("\r\n").rfind("HTTP/1.1 408", 0), 0u);
  EXPECT_EQ(idle.rest(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_EQ(s.counters().timeouts, 3);
}

TEST(HttpRefusals, AFullServerSaysSo) {
  HttpOptions o;
  o.max_connections = 2;
  TestServer s(o);
  RawClient a(s.port()), b(s.port());
  a.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(a.answer().rfind("HTTP/1.1 200", 0), 0u);
  ASSERT_TRUE(becomes_true([&] { return s.counters().connections == 2; }));
  RawClient full(s.port());
  full.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string no = full.rest();
  EXPECT_EQ(no.rfind("HTTP/1.1 503", 0), 0u) << no;
  EXPECT_NE(no.find("retry-after: 1\r\n"), std::string::npos);
  EXPECT_EQ(no.find("retry-after"), no.rfind("retry-after"));
  EXPECT_EQ(s.counters().refused_full, 1);
  b.hang_up();
  ASSERT_TRUE(becomes_true([&] { return s.counters().connections == 1; }));
  RawClient next(s.port());
  next.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(next.answer().rfind("HTTP/1.1 200", 0), 0u);
}

// A shape of refusals may say itself when to come again.
TEST(HttpRefusals, OneRetryAfter) {
  HttpOptions o;
  o.max_connections = 1;
  o.refusal = [](int status, std::string_view, const HttpRequest&) {
    return HttpAnswer{.status = status, .body = "busy", .headers = {{"retry-after", "5"}}};
  };
  TestServer s(o);
  RawClient a(s.port());
  a.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  RawClient full(s.port());
  const std::string no = full.rest();
  EXPECT_NE(no.find("retry-after: 5\r\n"), std::string::npos) << no;
  EXPECT_EQ(no.find("retry-after"), no.rfind("retry-after"));
}

// Of two that keep their connections without using them, the one that has done so for longer makes room; one that waits
// for its answer never does.
TEST(HttpRefusals, IdleConnectionsMakeRoom) {
  HttpOptions o;
  o.max_connections = 3;
  TestServer s(o);
  const std::string hello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
  RawClient busy(s.port()), longest(s.port()), shorter(s.port());
  busy.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  longest.send(hello);
  EXPECT_EQ(longest.answer().rfind("HTTP/1.1 200", 0), 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  shorter.send(hello);
  EXPECT_EQ(shorter.answer().rfind("HTTP/1.1 200", 0), 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  RawClient next(s.port());
  next.send(hello);
  EXPECT_EQ(next.answer().rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_TRUE(longest.ends());
  shorter.send(hello);
  EXPECT_EQ(shorter.answer().rfind("HTTP/1.1 200", 0), 0u);
  s.held(0)->send(200, "text/plain", "done");
  EXPECT_NE(busy.answer().find("done"), std::string::npos);
  EXPECT_EQ(s.counters().refused_full, 0);
}

// An address that holds all connections with requests that never become whole gives some back to others, up to equal
// shares, and gets no more itself.
TEST(HttpRefusals, ConnectionsAreSharedByAddress) {
  HttpOptions o;
  o.max_connections = 4;
  TestServer s(o);
  std::deque<RawClient> greedy;
  for (size_t i = 0; i < 4; ++i) {
    greedy.emplace_back(s.port());
    // The first waits for its answer: that one is never taken.
    greedy.back().send(i == 0 ? "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n" : "GET /hello HTTP/1.1\r\nHo");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the next one's time ends later
  }
  ASSERT_TRUE(becomes_true([&] { return s.counters().connections == 4 && s.held_count() == 1; }));
  RawClient more(s.port());
  EXPECT_EQ(more.rest().rfind("HTTP/1.1 503", 0), 0u);
  const std::string hello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
  RawClient other(s.port(), 0, "127.0.0.2"), third(s.port(), 0, "127.0.0.2"), fourth(s.port(), 0, "127.0.0.2");
  other.send(hello);
  EXPECT_EQ(other.answer().rfind("HTTP/1.1 200", 0), 0u);
  third.send(hello);
  EXPECT_EQ(third.answer().rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_EQ(fourth.rest().rfind("HTTP/1.1 503", 0), 0u);
  EXPECT_TRUE(greedy[1].ends());
  EXPECT_TRUE(greedy[2].ends());
  greedy[3].send("st: a\r\n\r\n");
  EXPECT_EQ(greedy[3].answer().rfind("HTTP/1.1 200", 0), 0u);
  s.held(0)->send(200, "text/plain", "done");
  EXPECT_NE(greedy[0].answer().find("done"), std::string::npos);
  EXPECT_EQ(s.counters().refused_full, 2);
}

TEST(HttpRefusals, CodedBodiesAreNotRead) {
  TestServer s;
  RawClient gzip(s.port()), plain(s.port());
  gzip.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_EQ(gzip.rest().rfind("HTTP/1.1 415 Unsupported Media Type", 0), 0u);
  plain.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_EQ(plain.answer().rfind("HTTP/1.1 200", 0), 0u);
}

}  // namespace
}  // namespace mdi
