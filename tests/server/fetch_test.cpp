// faults: "Remote image URLs reach inside the network. Fetching is off unless allowed; private ranges, redirects and
// file paths refused."
#include "server/fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "core/error.h"

namespace mdi {
namespace {

bool is_public(const char* text) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (std::strchr(text, ':') != nullptr) {
    v6->sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text, &v6->sin6_addr), 1) << text;
  } else {
    v4->sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text, &v4->sin_addr), 1) << text;
  }
  return is_public_address(reinterpret_cast<const sockaddr&>(storage));
}

TEST(PublicAddress, LeavesOutWhatIsInsideOrReserved) {
  for (const char* inside : {"0.0.0.0",
                             "0.1.2.3",
                             "10.0.0.1",
                             "10.255.255.255",
                             "100.64.0.1",
                             "100.127.255.255",
                             "127.0.0.1",
                             "127.255.255.254",
                             "169.254.169.254",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.0.0.1",
                             "192.0.2.1",
                             "192.168.1.1",
                             "198.18.0.1",
                             "198.19.255.255",
                             "198.51.100.7",
                             "203.0.113.9",
                             "224.0.0.1",
                             "239.1.1.1",
                             "240.0.0.1",
                             "255.255.255.255",
                             "::",
                             "::1",
                             "::ffff:8.8.8.8",
                             "::ffff:127.0.0.1",
                             "64:ff9b::7f00:1",
                             "fc00::1",
                             "fd12::1",
                             "fe80::1",
                             "fec0::1",
                             "ff02::1",
                             "2001::1",
                             "2001:10::1",
                             "2001:20::1",
                             "2001:db8::1",
                             "2002:7f00:1::",
                             "3fff::1",
                             "100::1",
                             "4000::1"}) {
    EXPECT_FALSE(is_public(inside)) << inside;
  }
  for (const char* outside : {"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
                              "126.255.255.255", "128.0.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255",
                              "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:200::1", "3ffe::1"}) {
    EXPECT_TRUE(is_public(outside)) << outside;
  }
  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(is_public_address(other));
}

// Answers each connection with one text.
class Host {
 public:
  explicit Host(std::string answer)
      : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Host() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string url(const std::string& path = "/a.png") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  uint16_t port() const { return port_; }
  int connections() const { return connections_; }

 private:
  void serve() {
    for (;;) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      ++connections_;
      char buffer[4096];
      if (recv(client, buffer, sizeof(buffer), 0) > 0 && !answer_.empty()) {
        send(client, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      }
      if (answer_.empty()) recv(client, buffer, sizeof(buffer), 0);  // says nothing until the other side goes
      close(client);
    }
  }

  std::string answer_;
  int listener_;
  uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

std::string body_answer(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}
std::string redirect(const std::string& to) {
  return "HTTP/1.1 302 Found\r\nLocation: " + to + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
}

// Loopback on these ports passes for public.
FetchRules allowing(std::vector<uint16_t> ports) {
  FetchRules rules;
  rules.seconds = 3;
  rules.may_connect = [ports = std::move(ports)](const sockaddr& address) {
    if (address.sa_family != AF_INET) return false;
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    for (const uint16_t port : ports) {
      if (ntohs(v4.sin_port) == port) return true;
    }
    return false;
  };
  return rules;
}

std::string failure(const std::string& url, const FetchRules& rules) {
  try {
    fetch(url, "here", rules);
  } catch (const Error& error) {
    return error.what();
  }
  return "fetched";
}

struct Fetch : ::testing::Test {
  void SetUp() override {
    if (!can_fetch()) GTEST_SKIP() << "this build has no libcurl";
  }
};

TEST_F(Fetch, BringsTheBytesAndFollowsRedirects) {
  const Host host(body_answer("bytes"));
  const Host front(redirect(host.url()));
  const auto bytes = fetch(front.url(), "here", allowing({host.port(), front.port()}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "bytes");
}

TEST_F(Fetch, NeverConnectsToWhatIsNotPublic) {
  const Host host(body_answer("secret"));
  const std::string why = failure(host.url(), {.seconds = 3});
  EXPECT_EQ(why, "here: the image cannot be fetched: the host's address is not a public one");
  EXPECT_NE(failure("http://localhost:" + std::to_string(host.port()) + "/", {.seconds = 3}), "fetched");
  EXPECT_NE(failure("http://0x7f.1:" + std::to_string(host.port()) + "/", {.seconds = 3}), "fetched");
  EXPECT_NE(failure("http://[::ffff:127.0.0.1]:" + std::to_string(host.port()) + "/", {.seconds = 3}), "fetched");
  EXPECT_EQ(host.connections(), 0);
}

TEST_F(Fetch, ARedirectGoesNowhereElse) {
  const Host inside(body_answer("secret"));
  for (const std::string& to : {inside.url(), std::string("file:///etc/passwd"), std::string("gopher://127.0.0.1/")}) {
    const Host front(redirect(to));
    EXPECT_NE(failure(front.url(), allowing({front.port()})), "fetched") << to;
  }
  EXPECT_EQ(inside.connections(), 0);
  EXPECT_NE(failure("file:///etc/passwd", {.seconds = 3}), "fetched");
}

TEST_F(Fetch, IsBoundedInSizeTimeAndRedirects) {
  const Host large(body_answer(std::string(5000, 'x')));
  FetchRules rules = allowing({large.port()});
  rules.max_bytes = 4999;
  EXPECT_NE(failure(large.url(), rules).find("more than 4999 bytes"), std::string::npos);
  const Host unsaid("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + std::string(5000, 'x'));
  rules = allowing({unsaid.port()});
  rules.max_bytes = 4999;
  EXPECT_NE(failure(unsaid.url(), rules).find("more than 4999 bytes"), std::string::npos);

  const Host silent("");
  rules = allowing({silent.port()});
  rules.seconds = 0.3;
  EXPECT_NE(failure(silent.url(), rules), "fetched");

  const Host loop(redirect("/again"));
  EXPECT_NE(failure(loop.url(), allowing({loop.port()})), "fetched");
  EXPECT_LE(loop.connections(), 4);
}

TEST_F(Fetch, EndsWhenItIsToldTo) {
  const Host silent("");
  FetchRules rules = allowing({silent.port()});
  rules.seconds = 600;
  int asked = 0;
  rules.stopped = [&] { return silent.connections() > 0 && ++asked > 1; };
  EXPECT_EQ(failure(silent.url(), rules), "here: the image cannot be fetched: the server is ending");
}

TEST_F(Fetch, NeedsAnAnswerThatIsOne) {
  const Host missing("HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret");
  const std::string why = failure(missing.url(), allowing({missing.port()}));
  EXPECT_NE(why.find("status 404"), std::string::npos);
  EXPECT_EQ(why.find("secret"), std::string::npos);
  EXPECT_NE(failure("http://user:word@127.0.0.1/", {.seconds = 3}), "fetched");
}

}  // namespace
}  // namespace mdi
