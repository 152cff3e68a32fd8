// A line a request: what is in it, and what is not.
#include "server/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "text/ordered_json.h"

namespace mdi {
namespace {

struct FakeReply : HttpReply {
  int status = 0;
  Headers headers;
  std::string text;
  bool is_gone = false;
  void send(int s, std::string, std::string body, Headers extra) override {
    status = s;
    text = std::move(body);
    headers = std::move(extra);
  }
  void begin(int s, std::string, Headers extra) override {
    status = s;
    headers = std::move(extra);
  }
  bool write(std::string more) override {
    text += more;
    return !is_gone;
  }
  void end() override {}
  void on_gone(std::function<void()>) override {}
  bool gone() const override { return is_gone; }

  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
};

HttpRequest request() {
  HttpRequest r;
  r.id = 7;
  r.method = "POST";
  r.path = "/v1/chat/completions";
  r.peer = "127.0.0.1:5";
  r.body = "{\"secret\": \"prompt\"}";
  r.headers = {{"authorization", "Bearer sk-a-secret-key"}};
  return r;
}

// Everything that is logged until the log ends.
template <class Work>
std::vector<OrderedJson> logged(LogOptions options, Work work) {
  options.json = true;
  testing::internal::CaptureStderr();
  {
    const auto log = std::make_shared<ServerLog>(options);
    work(log);
  }
  std::istringstream lines(testing::internal::GetCapturedStderr());
  std::vector<OrderedJson> out;
  for (std::string line; std::getline(lines, line);) out.push_back(OrderedJson::parse(line));
  return out;
}

TEST(ServerLog, ARequestIsOneLineWithItsTokens) {
  const auto fake = std::make_shared<FakeReply>();
  const auto lines = logged({}, [&](const std::shared_ptr<ServerLog>& log) {
    const auto reply = std::make_shared<LoggedReply>(fake, log, request());
    int parts = 0;
    const AnswerCallback answer = noted(reply, [&](const AnswerPart&) { ++parts; });
    reply->begin(200, "text/event-stream", {});
    AnswerPart part;
    part.total = {.prompt_tokens = 12, .cached_tokens = 8, .completion_tokens = 1};
    answer(part);
    reply->write("12345");
    part.total.completion_tokens = 30;
    part.finish = Finish::kLength;
    part.last = true;
    answer(part);
    reply->end();
    EXPECT_EQ(parts, 2);
  });
  ASSERT_EQ(lines.size(), 1u);
  const OrderedJson& l = lines[0];
  EXPECT_EQ(l["event"], "request");
  EXPECT_EQ(l["method"], "POST");
  EXPECT_EQ(l["path"], "/v1/chat/completions");
  EXPECT_EQ(l["status"], 200);
  EXPECT_EQ(l["prompt_tokens"], 12);
  EXPECT_EQ(l["cached_tokens"], 8);
  EXPECT_EQ(l["completion_tokens"], 30);
  EXPECT_EQ(l["finish"], "length");
  EXPECT_EQ(l["end"], "answered");
  EXPECT_EQ(l["bytes"], 5);
  EXPECT_GE(l["duration"].get<double>(), l["ttft"].get<double>());
  EXPECT_EQ(l["id"], fake->header("x-request-id"));
  EXPECT_EQ(fake->header("request-id"), fake->header("x-request-id"));
  EXPECT_EQ(l.dump().find("secret"), std::string::npos) << "neither the prompt nor the key";
}

// More than a pipe holds, and nobody who reads it: the log ends all the same, and what was taken are whole lines.
TEST(ServerLog, EndsAlsoWhenNobodyReads) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int kept = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  {
    ServerLog log({});
    for (int i = 0; i < 2000; ++i) log.say(ServerLog::Level::kInfo, std::string(1000, 'x'));
  }
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  EXPECT_GE(text.size(), 4096u);
  EXPECT_LT(text.size(), 2000u * 1000);
  EXPECT_NE(text.find(" info " + std::string(1000, 'x') + "\n"), std::string::npos);
}

TEST(ServerLog, PromptsOnlyWhenAskedForAndNeverKeys) {
  const auto lines = logged({.prompts = true}, [](const std::shared_ptr<ServerLog>& log) {
    LoggedReply(std::make_shared<FakeReply>(), log, request()).send(400, "a", "b", {});
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["body"], request().body);
  EXPECT_EQ(lines[0]["id"], lines[1]["id"]);
  EXPECT_EQ(lines[0].dump().find("sk-a-secret-key"), std::string::npos);
}

TEST(ServerLog, HowARequestEnded) {
  const auto lines = logged({}, [](const std::shared_ptr<ServerLog>& log) {
    const auto gone = std::make_shared<FakeReply>();
    gone->is_gone = true;
    LoggedReply(gone, log, request()).begin(200, "a", {});
    LoggedReply(std::make_shared<FakeReply>(), log, request());
    log_refused(*log, request(), 401, "no\nkey");
  });
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["end"], "client gone");
  EXPECT_EQ(lines[1]["end"], "dropped");
  EXPECT_EQ(lines[2]["end"], "refused");
  EXPECT_EQ(lines[2]["status"], 401);
}

TEST(ServerLog, RequestIdsAreTakenWhereSane) {
  HttpRequest r = request();
  const std::string made = request_id_of(r);
  EXPECT_EQ(made.rfind("req-", 0), 0u);
  EXPECT_EQ(made.substr(made.size() - 2), "-7");
  r.headers.emplace_back("x-request-id", "client:one_1.2-3");
  EXPECT_EQ(request_id_of(r), "client:one_1.2-3");
  for (const std::string& bad :
       {std::string("a b"), std::string("a\"b"), std::string("a\nb"), std::string(129, 'x'), std::string("\xc3\xa9")}) {
    r.headers.back().second = bad;
    EXPECT_EQ(request_id_of(r), made) << bad;
  }
}

TEST(ServerLog, TextIsOneLineWhateverIsInIt) {
  testing::internal::CaptureStderr();
  {
    ServerLog log({});
    log.line(ServerLog::Level::kWarning, "something", {{"a", "one\ntwo \"three\""}, {"b", "plain"}, {"c", ""}});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.substr(text.find("Z ")), "Z warning something a=\"one\\ntwo \\\"three\\\"\" b=plain c=\"\"\n");
}

}  // namespace
}  // namespace mdi
