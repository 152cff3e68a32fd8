// Keys, hosts and origins.
#include "server/auth.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "core/error.h"

namespace mdi {
namespace {

KeyRing ring(const char* list) { return load_keys("", list); }

HttpRequest head(const std::string& method, const std::string& path, Headers headers = {}) {
  HttpRequest r;
  r.id = 1;
  r.method = method;
  r.path = path;
  r.peer = "127.0.0.1:1";
  r.headers = {{"host", "localhost:8000"}};
  for (auto& h : headers) r.headers.push_back(std::move(h));
  return r;
}

std::function<std::optional<HttpAnswer>(HttpRequest)> admit(KeyRing keys, std::vector<std::string> origins = {},
                                                            bool loopback = true) {
  return [check = make_admit({.keys = std::move(keys), .allowed_origins = std::move(origins), .loopback = loopback},
                             [] { return nullptr; })](HttpRequest request) { return check(request); };
}

int status(const std::optional<HttpAnswer>& answer) { return answer ? answer->status : 0; }

std::string file_with(const std::string& text) {
  std::string path = testing::TempDir() + "keys_" + std::to_string(testing::UnitTest::GetInstance()->random_seed()) +
                     "_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream(path) << text;
  return path;
}

std::string error_of(const std::string& file, const char* list) {
  try {
    load_keys(file, list);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Keys, FileAndListAreRead) {
  const KeyRing keys =
      load_keys(file_with("# staff\nsk-first-key\n\n  sk-second-key \r\n"), "sk-third-key, sk-fourth-key");
  EXPECT_EQ(keys.size(), 4u);
  for (const char* key : {"sk-first-key", "sk-second-key", "sk-third-key", "sk-fourth-key"}) {
    EXPECT_TRUE(keys.accepts(key)) << key;
  }
  for (const char* key : {"", "sk-first-ke", "sk-first-key ", "SK-FIRST-KEY", "# staff", "sk-first-keyx"}) {
    EXPECT_FALSE(keys.accepts(key)) << key;
  }
  EXPECT_FALSE(keys.accepts(std::string(100000, 'x')));
  EXPECT_TRUE(load_keys("", nullptr).empty());
}

TEST(Keys, BadKeysAreNamedByLineAndNotShown) {
  const std::string file = file_with("sk-good-key\nshort\n");
  EXPECT_EQ(error_of(file, nullptr), file + ", line 2: expected a key of 8 to 512 characters, found 5");
  EXPECT_EQ(error_of("",
                     "with\x01"
                     "control"),
            "MDI_API_KEYS: expected a key of visible ASCII characters without spaces");
  EXPECT_EQ(error_of(file_with("# nothing\n"), nullptr).substr(error_of(file_with("# nothing\n"), nullptr).find(": ")),
            ": expected an API key a line, found none");
  EXPECT_EQ(error_of("/nowhere/keys", nullptr), "/nowhere/keys: cannot read the file of API keys");
  EXPECT_EQ(error_of("", " , "), "MDI_API_KEYS: expected API keys, found none");
}

// A device that never ends, or a file given by mistake, is not read on and on.
TEST(Keys, AFileOfKeysHasAnEnd) {
  try {
    load_keys("/dev/zero", nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "/dev/zero: expected API keys of 1 MiB at most, found more");
  }
}

TEST(Keys, BothHeadersAreLookedAt) {
  const auto check = admit(ring("sk-the-right-key"));
  const auto post = [&](Headers headers) {
    return status(check(head("POST", "/v1/chat/completions", std::move(headers))));
  };
  EXPECT_EQ(post({}), 401);
  EXPECT_EQ(post({{"authorization", "Bearer sk-the-right-key"}}), 0);
  EXPECT_EQ(post({{"authorization", "bearer  sk-the-right-key"}}), 0);
  EXPECT_EQ(post({{"x-api-key", "sk-the-right-key"}}), 0);
  EXPECT_EQ(post({{"authorization", "Basic sk-the-right-key"}}), 401);
  EXPECT_EQ(post({{"authorization", "sk-the-right-key"}}), 401);
  EXPECT_EQ(post({{"authorization", "Bearer wrong-key-here"}, {"x-api-key", "sk-the-right-key"}}), 0);
  EXPECT_EQ(post({{"authorization", "Bearer "}}), 401);
}

// Or a client could be another one with each request, and have more than its share.
TEST(Keys, TheOneThatLetsARequestInSaysWhoseItIs) {
  const auto client_at = [](KeyRing keys, Headers headers) {
    const auto check = make_admit({.keys = std::move(keys), .allowed_origins = {}}, [] { return nullptr; });
    HttpRequest request = head("POST", "/v1/chat/completions", std::move(headers));
    EXPECT_FALSE(check(request));
    return request.client;
  };
  const KeyRing keys = ring("sk-the-right-key sk-another-key");
  const auto client = [&](Headers headers) { return client_at(keys, std::move(headers)); };
  const std::string own = client({{"authorization", "Bearer sk-the-right-key"}});
  EXPECT_TRUE(own.starts_with("key ")) << own;
  EXPECT_EQ(own.find("right"), std::string::npos);
  EXPECT_EQ(client({{"authorization", "bearer   sk-the-right-key"}}), own);
  EXPECT_EQ(client({{"x-api-key", "sk-the-right-key"}}), own);
  EXPECT_EQ(client({{"authorization", "Bearer sk-the-right-key"}, {"x-api-key", "wrong-key"}}), own);
  EXPECT_NE(client({{"x-api-key", "sk-another-key"}}), own);
  for (const char* other : {"Bearer 1", "Bearer sk-the-right-kez", "Basic x"}) {
    EXPECT_EQ(client({{"authorization", other}, {"x-api-key", "sk-the-right-key"}}), own) << other;
    EXPECT_EQ(client_at({}, {{"authorization", other}, {"x-api-key", other}}), "") << other;
  }
}

TEST(Keys, EveryPathNeedsOneButTheOpenOnes) {
  const auto check = admit(ring("sk-the-right-key"));
  for (const char* path : {"/", "/v1/models", "/metrics", "/tokenize", "/nothing", "/health/", "/v1/../health"}) {
    EXPECT_EQ(status(check(head("GET", path))), 401) << path;
  }
  EXPECT_EQ(status(check(head("GET", "/health"))), 0);
  EXPECT_EQ(status(check(head("GET", "/ready"))), 0);
}

TEST(Keys, TheErrorHasTheShapeOfTheApi) {
  const auto check = admit(ring("sk-the-right-key"));
  const auto openai = check(head("POST", "/v1/chat/completions"));
  ASSERT_TRUE(openai);
  EXPECT_NE(openai->body.find("\"error\""), std::string::npos);
  EXPECT_NE(openai->body.find("invalid_api_key"), std::string::npos);
  const auto anthropic = check(head("POST", "/v1/messages"));
  ASSERT_TRUE(anthropic);
  EXPECT_NE(anthropic->body.find("\"type\":\"error\""), std::string::npos) << anthropic->body;
  EXPECT_NE(anthropic->body.find("authentication_error"), std::string::npos);
  const auto models = check(head("GET", "/v1/models", {{"anthropic-version", "2023-06-01"}}));
  ASSERT_TRUE(models);
  EXPECT_NE(models->body.find("\"type\":\"error\""), std::string::npos) << models->body;
}

TEST(Keys, WhatIsRefusedBeforeAnEndpointHasAKind) {
  EXPECT_EQ(kind_of_status(401), ApiErrorKind::kAuthentication);
  EXPECT_EQ(kind_of_status(403), ApiErrorKind::kAuthentication);
  EXPECT_EQ(kind_of_status(413), ApiErrorKind::kTooLarge);
  EXPECT_EQ(kind_of_status(415), ApiErrorKind::kInvalid);
  EXPECT_EQ(kind_of_status(503), ApiErrorKind::kUnavailable);
  EXPECT_EQ(kind_of_status(529), ApiErrorKind::kUnavailable);
  EXPECT_EQ(kind_of_status(505), ApiErrorKind::kInternal);
  EarlyErrors errors;
  errors.count(401);
  errors.count(403);
  EXPECT_EQ(errors.of[static_cast<size_t>(ApiErrorKind::kAuthentication)], 2);
}

TEST(Hosts, WithoutKeysOnlyThisMachinesNames) {
  const auto with_host = [](const std::function<std::optional<HttpAnswer>(HttpRequest)>& check, const char* host) {
    HttpRequest r = head("GET", "/v1/models");
    r.headers[0].second = host;
    return status(check(r));
  };
  const auto check = admit({});
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000"}) {
    EXPECT_EQ(with_host(check, host), 0) << host;
  }
  for (const char* host :
       {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::2]"}) {
    EXPECT_EQ(with_host(check, host), 403) << host;
  }
  EXPECT_EQ(with_host(admit({}, {}, false), "evil.example"), 0) << "not on loopback";
  HttpRequest unix_socket = head("GET", "/v1/models");
  unix_socket.headers[0].second = "anything";
  unix_socket.peer = "unix";
  EXPECT_EQ(status(check(unix_socket)), 0);
}

TEST(Origins, PagesOfOthersCannotPost) {
  const auto check = admit({}, {"https://Chat.Example"});
  const auto with = [&](const char* method, const char* origin) {
    return status(check(head(method, "/v1/chat/completions", {{"origin", origin}})));
  };
  EXPECT_EQ(with("POST", "http://localhost:8000"), 0) << "the server's own page";
  EXPECT_EQ(with("POST", "https://localhost:8000"), 403) << "TLS is not spoken here";
  HttpRequest proxied = head("POST", "/v1/chat/completions", {{"origin", "https://localhost:8000"}});
  proxied.peer = "unix";
  EXPECT_EQ(status(check(proxied)), 0) << "whoever stands before the socket file may speak it";
  EXPECT_EQ(with("POST", "https://chat.example"), 0);
  EXPECT_EQ(with("POST", "https://evil.example"), 403);
  EXPECT_EQ(with("POST", "http://localhost:9000"), 403);
  EXPECT_EQ(with("POST", "null"), 403);
  EXPECT_EQ(with("GET", "https://evil.example"), 0) << "nothing lets its page read the answer";
  EXPECT_EQ(status(admit({}, {"*"})(head("POST", "/v1/messages", {{"origin", "https://evil.example"}}))), 0);
}

TEST(Origins, PreflightsOfAllowedOnesNeedNoKey) {
  const auto check = admit(ring("sk-the-right-key"), {"https://chat.example"});
  const Headers asks{{"access-control-request-method", "POST"}, {"access-control-request-headers", "authorization"}};
  Headers good = asks, bad = asks;
  good.emplace_back("origin", "https://chat.example");
  bad.emplace_back("origin", "https://evil.example");
  const auto yes = check(head("OPTIONS", "/v1/chat/completions", good));
  ASSERT_EQ(status(yes), 204);
  const Headers reads = origin_headers(head("OPTIONS", "/v1/chat/completions", good), {"https://chat.example"});
  ASSERT_FALSE(reads.empty());
  EXPECT_EQ(reads[0], std::pair(std::string("access-control-allow-origin"), std::string("https://chat.example")));
  EXPECT_EQ(status(check(head("OPTIONS", "/v1/chat/completions", bad))), 403);
  EXPECT_TRUE(origin_headers(head("GET", "/", {{"origin", "https://evil.example"}}), {"https://chat.example"}).empty());
}

TEST(Origins, OnlyOriginsCanBeAllowed) {
  for (const char* good : {"*", "http://localhost:3000", "https://chat.example"}) EXPECT_NO_THROW(check_origin(good));
  for (const char* bad : {"", "chat.example", "https://", "https://a/b", "ftp://a", "https://*.example", "null"}) {
    EXPECT_THROW(check_origin(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace mdi
