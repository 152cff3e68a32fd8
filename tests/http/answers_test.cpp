// Plain requests and streams, as a well-behaved client sees them.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "raw_client.h"
#include "test_server.h"

namespace mdi {
namespace {

const std::string kHello = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";

TEST(HttpAnswers, AnAnswerHasItsLengthAndTheConnectionStays) {
  TestServer s;
  RawClient c(s.port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(c.send(kHello));
    const std::string a = c.answer();
    EXPECT_EQ(a.rfind("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\ndate: ", 0), 0u) << a;
    EXPECT_EQ(a.substr(a.size() - 9), "\r\n\r\nhello");
    EXPECT_EQ(a.find("connection:"), std::string::npos);
  }
  EXPECT_EQ(s.counters().accepted, 1);
  EXPECT_EQ(s.counters().requests, 3);
  EXPECT_TRUE(becomes_true([&] { return s.counters().answered[2] == 3 && s.counters().answering == 0; }));
}

TEST(HttpAnswers, TheRequestArrivesWhole) {
  TestServer s;
  RawClient c(s.port());
  c.send("POST /echo?a=%20b&c HTTP/1.1\r\nHOST: a\r\nX-Odd:  spaces \t\r\nX-Odd: two\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_NE(c.answer().find("\r\n\r\nPOST /echo?a=%20b&c body"), std::string::npos);
  const HttpRequest r = s.requests().at(0);
  EXPECT_EQ(r.header("x-odd"), "spaces");
  EXPECT_EQ(r.header("host"), "a");
  EXPECT_EQ(r.header("absent"), "");
  EXPECT_EQ(r.peer.rfind("127.0.0.1:", 0), 0u);
  EXPECT_GT(r.id, 0u);
}

TEST(HttpAnswers, ChunksAreJoined) {
  TestServer s;
  RawClient c(s.port());
  c.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5\r\nhello\r\n1;ext=\"q\"\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n" +
      kHello);
  EXPECT_NE(c.answer().find("POST /echo? hello 0123456789"), std::string::npos);
  EXPECT_NE(c.answer().find("hello"), std::string::npos);
  EXPECT_EQ(s.requests().at(0).header("trailer"), "");
}

TEST(HttpAnswers, CutAnywhereARequestMeansTheSame) {
  TestServer s;
  const std::string request =
      "POST /echo?q HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nxyz";
  for (size_t cut = 1; cut < request.size(); ++cut) {
    RawClient c(s.port());
    c.send(request.substr(0, cut));
    if (cut % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    c.send(request.substr(cut));
    ASSERT_NE(c.answer().find("POST /echo?q abcdef"), std::string::npos) << cut;
    ASSERT_NE(c.answer().find("POST /echo? xyz"), std::string::npos) << cut;
  }
  RawClient c(s.port());
  for (const char byte : request) {
    c.send({&byte, 1});
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  EXPECT_NE(c.answer().find("POST /echo?q abcdef"), std::string::npos);
  EXPECT_NE(c.answer().find("POST /echo? xyz"), std::string::npos);
}

TEST(HttpAnswers, PipelinedRequestsAreAnsweredInOrder) {
  TestServer s;
  RawClient c(s.port());
  std::string all;
  for (int i = 0; i < 300; ++i) {
    all += "POST /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
  }
  c.send(all);
  for (int i = 0; i < 300; ++i) {
    ASSERT_NE(c.answer().find("/echo?" + std::to_string(i) + " ab"), std::string::npos) << i;
  }
}

TEST(HttpAnswers, ARequestSentAheadWaitsForTheAnswerBeforeIt) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n" + kHello);
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(s.requests().size(), 1u);
  s.held(0)->send(200, "text/plain", "first");
  EXPECT_NE(c.answer().find("first"), std::string::npos);
  EXPECT_NE(c.answer().find("hello"), std::string::npos);
}

TEST(HttpAnswers, AStreamComesAsItIsWritten) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  const std::string head = c.until("\r\n\r\n");
  EXPECT_NE(head.find("transfer-encoding: chunked"), std::string::npos) << head;
  const auto reply = s.held(0);
  EXPECT_TRUE(reply->write("data: one\n\n"));
  EXPECT_EQ(c.until("one\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
  EXPECT_TRUE(reply->write(""));
  EXPECT_TRUE(reply->write("data: two\n\n"));
  EXPECT_EQ(c.until("two\n\n\r\n"), "b\r\ndata: two\n\n\r\n");
  reply->end();
  EXPECT_EQ(c.until("0\r\n\r\n"), "0\r\n\r\n");
  reply->end();
  EXPECT_EQ(s.gone, 0);
  c.send(kHello);
  EXPECT_NE(c.answer().find("hello"), std::string::npos);
}

TEST(HttpAnswers, AnOldClientGetsTheStreamUntilTheConnectionEnds) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /stream HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(becomes_true([&] { return s.held_count() == 1; }));
  s.held(0)->write("one ");
  s.held(0)->write("two");
  s.held(0)->end();
  const std::string a = c.rest();
  EXPECT_TRUE(c.ended());
  EXPECT_EQ(a.find("transfer-encoding"), std::string::npos);
  EXPECT_EQ(a.substr(a.find("\r\n\r\n")), "\r\n\r\none two");
}

TEST(HttpAnswers, HeadHasTheLengthWithoutTheBody) {
  TestServer s;
  RawClient c(s.port());
  c.send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n" + kHello);
  const std::string head = c.until("\r\n\r\n");
  EXPECT_NE(head.find("content-length: 5\r\n"), std::string::npos);
  EXPECT_EQ(c.until("\r\n").rfind("HTTP/1.1 200", 0), 0u);
}

TEST(HttpAnswers, CloseIsHonoured) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /hello HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n");
  const std::string a = c.rest();
  EXPECT_TRUE(c.ended());
  EXPECT_NE(a.find("connection: close\r\n"), std::string::npos);
  EXPECT_NE(a.find("hello"), std::string::npos);
}

TEST(HttpAnswers, ContinueIsSaidBeforeTheBodyAndOnlyThen) {
  TestServer s;
  RawClient c(s.port());
  c.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c.send("ok");
  EXPECT_NE(c.answer().find("/echo? ok"), std::string::npos);
  c.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: much\r\n\r\n");
  EXPECT_EQ(c.until("\r\n").rfind("HTTP/1.1 417", 0), 0u);
}

TEST(HttpAnswers, AHandlerThatFailsOrForgetsIsA500) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /throw HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(c.answer().rfind("HTTP/1.1 500", 0), 0u);
  c.send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(c.answer().rfind("HTTP/1.1 500", 0), 0u);
  c.send("GET /cut HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string cut = c.rest();
  EXPECT_TRUE(c.ended());
  EXPECT_NE(cut.find("a beginning"), std::string::npos);
  EXPECT_EQ(cut.find("0\r\n\r\n"), std::string::npos) << "a stream that was let go must not look whole";
  EXPECT_EQ(s.counters().abandoned, 2);
}

TEST(HttpAnswers, HeadersCannotBeBrokenOutOf) {
  HttpServer server({}, [](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
    reply->send(200, "text/plain", "x", {{"x-id", "a\r\nx-evil: 1"}});
  });
  server.start();
  RawClient c(server.port());
  c.send(kHello);
  EXPECT_NE(c.answer().find("x-id: a  x-evil: 1\r\n"), std::string::npos);
}

TEST(HttpAnswers, ALargeAnswerArrivesWhole) {
  TestServer s;
  RawClient c(s.port());
  c.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(c.until("\r\n\r\n").find("HTTP/1.1 200"), 0u);
  size_t size = 0;
  while (size < 8u << 20) {
    const size_t n = c.until("\x01", 0.2).size();
    if (n == 0) break;
    size += n;
  }
  EXPECT_EQ(size, size_t{8} << 20);
  EXPECT_TRUE(becomes_true([&] { return s.counters().backlog_bytes == 0 && s.counters().answering == 0; }));
}

}  // namespace
}  // namespace mdi
