// A server whose handler does what the path says, for the transport's tests.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/server.h"

namespace mdi {

// GET /hello; POST /echo answers with method, path, query and body; /hold keeps the reply until the test answers it;
// /stream begins a stream and keeps it; /drop lets the reply go; /cut begins a stream and lets it go; /throw throws;
// /large answers with 8 MB.
class TestServer {
 public:
  explicit TestServer(HttpOptions options = {})
      : server(std::move(options), [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
          handle(std::move(request), std::move(reply));
        }) {
    server.start();
  }

  uint16_t port() const { return server.port(); }
  HttpCounters counters() const { return server.counters(); }
  // The replies that are kept; a client is gone when `gone` grows.
  std::shared_ptr<HttpReply> held(size_t index) {
    const std::lock_guard lock(mutex_);
    return index < held_.size() ? held_[index] : nullptr;
  }
  size_t held_count() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  std::vector<HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  std::atomic<int> gone{0};

 private:
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const std::string& path = request.path;
    if (path == "/hello") return reply->send(200, "text/plain", "hello");
    if (path == "/echo") {
      return reply->send(200, "text/plain", request.method + " " + path + "?" + request.query + " " + request.body);
    }
    if (path == "/large") return reply->send(200, "text/plain", std::string(8 << 20, 'x'));
    if (path == "/throw") throw std::runtime_error("a handler's fault");
    if (path == "/drop") return;
    if (path == "/cut") {
      reply->begin(200, "text/plain");
      reply->write("a beginning");
      return;
    }
    if (path == "/hold" || path == "/stream") {
      if (path == "/stream") reply->begin(200, "text/event-stream");
      reply->on_gone([this] { ++gone; });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(reply));
      return;
    }
    reply->send(404, "text/plain", "nothing here");
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> held_;
  std::vector<HttpRequest> requests_;

 public:
  HttpServer server;  // ends first
};

}  // namespace mdi
