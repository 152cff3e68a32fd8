// The endpoints without a network: requests go straight to the router, and a reply keeps what it is sent.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../grammar/paced_limits.h"
#include "core/error.h"
#include "engine/load.h"
#include "server/route.h"
#include "server/service.h"
#include "text/ordered_json.h"

namespace mdi::testing {

class KeptReply : public HttpReply {
 public:
  void send(int status, std::string content_type, std::string body, Headers extra) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    EXPECT_EQ(status_, 0) << "a second answer";
    status_ = status;
    type_ = std::move(content_type);
    body_ = std::move(body);
    headers_ = std::move(extra);
    over_ = true;
    wake_.notify_all();
  }
  void begin(int status, std::string content_type, Headers extra) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    EXPECT_EQ(status_, 0) << "a second answer";
    status_ = status;
    type_ = std::move(content_type);
    headers_ = std::move(extra);
  }
  bool write(std::string text) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return false;
    EXPECT_NE(status_, 0) << "text before the stream began";
    EXPECT_FALSE(over_) << "text after the end";
    body_ += text;
    ++writes_;
    wake_.notify_all();
    return true;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    over_ = true;
    wake_.notify_all();
  }
  void on_gone(std::function<void()> gone) override {
    bool now = false;
    {
      const std::lock_guard lock(mutex_);
      now = gone_;
      if (!now && !over_) on_gone_.push_back(gone);
    }
    if (now) gone();
  }
  bool gone() const override {
    const std::lock_guard lock(mutex_);
    return gone_;
  }

  // The client leaves.
  void hang_up() {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      if (over_ || gone_) return;
      gone_ = true;
      callbacks.swap(on_gone_);
    }
    for (const auto& callback : callbacks) callback();
  }
  bool wait(double seconds = 60) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; });
  }
  bool wait_for_text(double seconds = 60) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_ || !body_.empty(); });
  }
  bool wait_for_words(const std::string& words, double seconds = 60) {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return body_.find(words) != std::string::npos; };
    wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_ || there(); });
    return there();
  }
  bool registered() const {
    const std::lock_guard lock(mutex_);
    return !on_gone_.empty();
  }

  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& body() const { return body_; }
  int writes() const { return writes_; }
  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers_) {
      if (key == name) return value;
    }
    return {};
  }
  OrderedJson json() const { return parse_ordered_json(body_, "answer", {.max_bytes = size_t{64} << 20}); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  int status_ = 0, writes_ = 0;
  std::string type_, body_;
  Headers headers_;
  bool over_ = false, gone_ = false;
  std::vector<std::function<void()>> on_gone_;
};

// The objects of a stream's events, without [DONE], which must be the last.
inline std::vector<OrderedJson> events_of(const std::string& body) {
  std::vector<OrderedJson> events;
  bool done = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event that is not closed";
    if (end == std::string::npos) break;
    const std::string line = body.substr(at, end - at);
    at = end + 2;
    EXPECT_EQ(line.substr(0, 6), "data: ");
    EXPECT_FALSE(done) << "an event behind [DONE]";
    if (line == "data: [DONE]") {
      done = true;
    } else {
      events.push_back(parse_ordered_json(line.substr(6), "event"));
    }
  }
  EXPECT_TRUE(done) << body.substr(body.size() > 300 ? body.size() - 300 : 0);
  return events;
}

inline LoadedModel& small_model() {
  static LoadedModel loaded = load_for_cpu(std::filesystem::path(MDI_SOURCE_DIR) / "models/small", 1);
  return loaded;
}

// A service on the bundled model with its routes.
struct Talk {
  static EngineOptions engine_options() {
    EngineOptions o;
    o.slots = 4;
    o.max_length = 1024;
    o.snapshots = 32;
    return o;
  }
  static ServiceOptions service_options() {
    ServiceOptions o;
    o.model_name = "small";
    o.thinking = false;
    o.temperature = 0.6f;
    o.grammar = paced_limits();
    return o;
  }

  std::unique_ptr<Service> service;
  std::unique_ptr<Router> router;

  // context: of the test's own operations; null: the CPU's.
  explicit Talk(EngineOptions engine = engine_options(), ServiceOptions options = service_options(), bool start = true,
                Context* context = nullptr) {
    LoadedModel& m = small_model();
    service = std::make_unique<Service>(context != nullptr ? *context : *m.context, m.model, &*m.tokenizer,
                                        std::move(engine), std::move(options));
    router = std::make_unique<Router>(make_router(*service));
    if (start) service->start();
  }

  std::shared_ptr<KeptReply> send(const std::string& method, const std::string& path, std::string body,
                                  std::string client = {}, Headers headers = {}) const {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = std::move(body);
    request.peer = "127.0.0.1:5000";
    request.client = std::move(client);
    request.headers = std::move(headers);
    auto reply = std::make_shared<KeptReply>();
    router->handle(std::move(request), reply);
    return reply;
  }
  // Waits for the answer's end.
  std::shared_ptr<KeptReply> post(const std::string& path, const std::string& body) const {
    auto reply = send("POST", path, body);
    EXPECT_TRUE(reply->wait()) << body;
    return reply;
  }
  OrderedJson ask(const std::string& path, const std::string& body) const {
    const auto reply = post(path, body);
    EXPECT_EQ(reply->status(), 200) << body << "\n" << reply->body();
    return reply->json();
  }
  OrderedJson chat(const std::string& body) const { return ask("/v1/chat/completions", body); }
  std::vector<OrderedJson> stream(const std::string& path, const std::string& body) const {
    const auto reply = post(path, body);
    EXPECT_EQ(reply->status(), 200) << reply->body();
    EXPECT_EQ(reply->type(), "text/event-stream; charset=utf-8");
    return events_of(reply->body());
  }

  // Until nothing runs; then nothing may be held.
  void expect_nothing_held() const {
    for (int i = 0; i < 3000; ++i) {
      const EngineMetrics m = service->engine().metrics();
      if (m.running == 0 && m.waiting == 0 && service->counters().generations == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const EngineMetrics m = service->engine().metrics();
    EXPECT_EQ(m.running, 0);
    EXPECT_EQ(m.waiting, 0);
    EXPECT_EQ(service->counters().generations, 0);
    EXPECT_EQ(m.slots_free, m.slots_total);
    EXPECT_EQ(m.blocks_free + m.blocks_idle, m.blocks_total);
  }
};

}  // namespace mdi::testing
