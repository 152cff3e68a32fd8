// What a client sees when a step of the model fails, or takes long.
#include <atomic>
#include <future>

#include "kernels/cpu/backend.h"
#include "talk.h"

namespace mdi {
namespace {

using testing::events_of;
using testing::KeptReply;
using testing::Talk;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kMessages = "/v1/messages";

// The CPU's operations, except that a step fails or waits where a test says so.
struct Trouble {
  std::atomic<bool> fails{false};
  std::atomic<int> fails_in{0};  // steps; 0: not
  std::atomic<bool> waits{false}, waiting{false};
};

Trouble& trouble() {
  static Trouble state;
  return state;
}

Context& troubled_context() {
  static const std::unique_ptr<CpuContext> plain = make_cpu_context(1);
  static const Ops ops = [] {
    Ops made = *plain->ops;
    made.embed = [](Context& c, const StepView& step, const EmbedArgs& args) {
      while (trouble().waits) {
        trouble().waiting = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      trouble().waiting = false;
      if (trouble().fails_in > 0 && --trouble().fails_in == 0) trouble().fails = true;
      if (trouble().fails) throw std::runtime_error("the device was lost");
      plain->ops->embed(c, step, args);
    };
    return made;
  }();
  static const std::unique_ptr<CpuContext> context = [] {
    auto made = make_cpu_context(1);
    made->ops = &ops;
    return made;
  }();
  return *context;
}

struct TroubledTalk : Talk {
  explicit TroubledTalk(ServiceOptions options = service_options())
      : Talk(engine_options(), std::move(options), true, &troubled_context()) {}
  ~TroubledTalk() {
    trouble().waits = false;
    trouble().fails = false;
    trouble().fails_in = 0;
  }
};

std::string chat(const char* more) {
  return std::string(R"({"messages":[{"role":"user","content":"Go on."}],"max_tokens":900)") + more + "}";
}
std::string open_chat(const char* more) { return chat((std::string(R"(,"ignore_eos":true)") + more).c_str()); }

// One that the engine has only just not got any more says where it came from, too.
bool names_failure(const OrderedJson& answer) {
  const std::string message = answer["error"]["message"];
  return message.starts_with("Generation failed: ") && message.ends_with("the device was lost");
}

// The last event of a stream whose first part was sent.
OrderedJson last_event(const std::string& body) {
  const size_t at = body.rfind("\ndata: {");
  if (at == std::string::npos) return {};
  const size_t begin = at + 7;
  return parse_ordered_json(body.substr(begin, body.find('\n', begin) - begin), "event");
}

TEST(Failure, OpenRequestsAreToldInTheShapeOfTheirApi) {
  const TroubledTalk talk;
  const std::string completion = R"({"prompt":"Go on.","ignore_eos":true,"max_tokens":900)";
  const auto stream = talk.send("POST", kChat, open_chat(R"(,"stream":true)"));
  const auto completion_stream = talk.send("POST", kCompletions, completion + R"(,"stream":true})");
  const auto plain = talk.send("POST", kChat, open_chat(""));
  const auto completion_plain = talk.send("POST", kCompletions, completion + "}");
  ASSERT_TRUE(stream->wait_for_text() && completion_stream->wait_for_text());
  while (!plain->registered() || !completion_plain->registered()) std::this_thread::yield();
  trouble().fails = true;
  for (const auto& reply : {stream, plain, completion_stream, completion_plain}) ASSERT_TRUE(reply->wait());

  for (const auto& reply : {plain, completion_plain}) {
    EXPECT_EQ(reply->status(), 500);
    EXPECT_EQ(reply->json()["error"]["type"], "server_error");
    EXPECT_EQ(reply->json()["error"]["code"], "generation_failed");
    EXPECT_TRUE(names_failure(reply->json())) << reply->body();
  }
  for (const auto& reply : {stream, completion_stream}) {
    EXPECT_EQ(reply->status(), 200);
    const std::vector<OrderedJson> events = events_of(reply->body());  // ends with [DONE]
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back()["error"]["code"], "generation_failed") << reply->body();
  }
  for (const char* path : {"/health", "/ready"}) {
    const auto reply = talk.send("GET", path, "");
    EXPECT_EQ(reply->status(), 503);
    EXPECT_EQ(reply->json()["reason"], "the engine has failed: the device was lost");
  }
  EXPECT_EQ(talk.service->failure(), "the device was lost");
  // It stays so.
  trouble().fails = false;
  const auto later = talk.post(kChat, chat(""));
  EXPECT_EQ(later->status(), 503);
  EXPECT_EQ(later->json()["error"]["message"], "The engine has failed: the device was lost");
  EXPECT_EQ(talk.post(kMessages, chat(R"(,"model":"small")"))->status(), 529);
  talk.expect_nothing_held();
}

TEST(Failure, MessagesAreToldToo) {
  const TroubledTalk talk;
  const std::string body = R"({"model":"small","messages":[{"role":"user","content":"Count to a thousand."}],)"
                           R"("max_tokens":900,"temperature":1)";
  trouble().waits = true;  // the first step of both
  const auto plain = talk.send("POST", kMessages, body + "}");
  const auto stream = talk.send("POST", kMessages, body + R"(,"stream":true})");
  while (!plain->registered() || !stream->registered()) std::this_thread::yield();
  trouble().fails = true;
  trouble().waits = false;
  ASSERT_TRUE(plain->wait() && stream->wait());
  for (const auto& reply : {plain, stream}) {  // nothing was streamed yet
    EXPECT_EQ(reply->status(), 500);
    EXPECT_EQ(reply->json()["type"], "error");
    EXPECT_EQ(reply->json()["error"]["type"], "api_error");
    EXPECT_TRUE(names_failure(reply->json())) << reply->body();
  }
  talk.expect_nothing_held();
}

TEST(Failure, AMessageThatIsStreamedEndsWithAnErrorEvent) {
  const TroubledTalk talk;
  trouble().fails_in = 4;  // of the ten or more that the answer takes
  const auto stream =
      talk.post(kMessages, R"({"model":"small","messages":[{"role":"user","content":"Hello!"}],"temperature":0,)"
                           R"("max_tokens":900,"stream":true})");
  EXPECT_NE(stream->body().find("event: content_block_delta\n"), std::string::npos);
  EXPECT_EQ(stream->body().find("message_stop"), std::string::npos);
  EXPECT_NE(stream->body().find("\nevent: error\ndata: {"), std::string::npos) << stream->body();
  EXPECT_EQ(last_event(stream->body())["error"]["type"], "api_error");
  talk.expect_nothing_held();
}

// The transport's thread asks for these, so they may not wait for a step, however long it takes.
TEST(Failure, HealthIsAnsweredWhileAStepRuns) {
  const TroubledTalk talk;
  trouble().waits = true;
  const auto stream = talk.send("POST", kChat, chat(R"(,"stream":true)"));
  while (!trouble().waiting) std::this_thread::yield();
  std::vector<std::future<int>> answers;
  for (const char* path : {"/health", "/ready", "/v1/models"}) {
    answers.push_back(std::async(std::launch::async, [&talk, path] {
      const auto reply = talk.send("GET", path, "");
      return reply->wait(0) ? reply->status() : 0;  // answered when the handler comes back
    }));
  }
  // A second request is taken meanwhile, too, which is when the engine's lock is in use.
  const auto other = talk.send("POST", kChat, chat(""));
  for (auto& answer : answers) {
    ASSERT_EQ(answer.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "it waits for the step";
    EXPECT_EQ(answer.get(), 200);
  }
  while (!other->registered()) std::this_thread::yield();
  EXPECT_TRUE(trouble().waiting) << "the step has ended, nothing was seen";
  trouble().waits = false;
  EXPECT_TRUE(stream->wait() && other->wait());
  EXPECT_EQ(other->status(), 200);
  talk.expect_nothing_held();
}

ServiceOptions talkative() {
  ServiceOptions options = Talk::service_options();
  options.keep_alive = 0.02;
  return options;
}

std::string without(std::string text, const std::string& part) {
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

constexpr const char* kComment = ": keep-alive\n\n";

// While a request waits for its first token, and later between two.
TEST(KeepAlive, StreamsSayThatTheyLive) {
  const TroubledTalk talk(talkative());
  trouble().waits = true;
  const auto openai = talk.send("POST", kChat, chat(R"(,"stream":true)"));
  const auto completion = talk.send("POST", kCompletions, R"({"prompt":"Go on.","max_tokens":90,"stream":true})");
  const auto plain = talk.send("POST", kChat, chat(""));
  const auto anthropic = talk.send("POST", kMessages,
                                   R"({"model":"small","messages":[{"role":"user","content":"Tell me of Debian."}],)"
                                   R"("max_tokens":900,"stream":true})");
  for (const auto& reply : {openai, completion, anthropic}) {
    EXPECT_TRUE(reply->wait_for_words(std::string(kComment) + kComment));
    EXPECT_EQ(reply->type(), "text/event-stream; charset=utf-8");
  }
  trouble().waits = false;
  ASSERT_TRUE(anthropic->wait_for_words("content_block_delta"));
  trouble().waits = true;
  // Once its message has begun it has events of its own for this.
  const std::string ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  EXPECT_TRUE(anthropic->wait_for_words(ping + ping) || anthropic->wait_for_words("message_stop"));
  trouble().waits = false;
  for (const auto& reply : {openai, completion, anthropic, plain}) EXPECT_TRUE(reply->wait());
  EXPECT_FALSE(events_of(without(openai->body(), kComment)).empty());
  EXPECT_FALSE(events_of(without(completion->body(), kComment)).empty());
  const std::string message = without(anthropic->body(), kComment);
  EXPECT_EQ(message.find("event: message_start\n"), 0u) << message.substr(0, 200);
  EXPECT_NE(message.find("event: message_stop\n"), std::string::npos);
  EXPECT_EQ(plain->status(), 200);
  EXPECT_EQ(plain->body().find(kComment), std::string::npos);
  talk.expect_nothing_held();
}

// What fails behind a sign of life is an event, though no token was sent.
TEST(KeepAlive, AFailureBehindItIsAnEvent) {
  const TroubledTalk talk(talkative());
  trouble().waits = true;
  const auto openai = talk.send("POST", kChat, chat(R"(,"stream":true)"));
  const auto anthropic = talk.send("POST", kMessages, chat(R"(,"model":"small","stream":true)"));
  EXPECT_TRUE(openai->wait_for_words(kComment) && anthropic->wait_for_words(kComment));
  trouble().fails = true;
  trouble().waits = false;
  EXPECT_TRUE(openai->wait() && anthropic->wait());
  EXPECT_EQ(events_of(without(openai->body(), kComment)).back()["error"]["code"], "generation_failed");
  const std::string message = without(anthropic->body(), kComment);
  EXPECT_EQ(message.find("event: error\ndata: {"), 0u) << message;
  talk.expect_nothing_held();
}

}  // namespace
}  // namespace mdi
