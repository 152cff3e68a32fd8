// One answer on its way: written by anybody, sent by the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"

namespace mdi {

class Connection;

// What the exchange has to know of its request, and whom it tells. The functions may be called from any thread.
struct ExchangeContext {
  uint64_t id = 0;
  std::string method, path;
  Headers headers;  // of the answer, beside its own
  bool http10 = false;
  bool close = false;  // the connection ends after this answer
  size_t max_backlog = 0;
  std::function<void(std::shared_ptr<class Exchange>)> wake;  // there is something to send; never after gone
  std::function<void(int64_t)> count_backlog;
  std::function<HttpAnswer(int status, std::string_view message, const HttpRequest& head)> refusal;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(ExchangeContext context) : context_(std::move(context)) {}

  // For whoever answers (HttpReply).
  void send(int status, std::string_view content_type, std::string_view body, const Headers& extra);
  void begin(int status, std::string_view content_type, const Headers& extra);
  bool write(std::string_view text);
  void end();
  void on_gone(std::function<void()> callback);
  bool gone() const;
  void refuse(int status, std::string_view message);  // unless an answer has begun
  void abandon();                                     // nobody will write any more

  // For the connection, on the I/O thread.
  enum class Next : uint8_t {
    kBytes,     // `out` has some
    kWait,      // nothing yet
    kDone,      // all has been taken
    kOverflow,  // the backlog was full
    kCut,       // a stream that nobody will end
  };
  Next take(std::string& out);  // replaces out
  bool overflowed() const;
  bool ended() const;  // all has been written, if not yet taken
  void sent(size_t bytes);
  int finish();  // the system has it all; returns the status
  void lose();   // the client is gone: tells who wants to know
  bool abandoned() const;

  std::weak_ptr<Connection> connection;  // the I/O thread's

 private:
  void head(int status, std::string_view content_type, const Headers& extra, bool stream, size_t length);
  void added(size_t bytes);  // with the lock

  const ExchangeContext context_;
  mutable std::mutex mutex_;  // of what follows
  std::string pending_;
  size_t backlog_ = 0;  // bytes of pending_, and taken but not sent
  int status_ = 0;      // of the head; 0: none yet
  bool stream_ = false, ended_ = false, gone_ = false, overflow_ = false, abandoned_ = false, told_ = false;
  bool woken_ = false;
  std::vector<std::function<void()>> callbacks_;
};

// The handle that handlers get: the last one to go abandons the exchange.
class Reply : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Reply() override;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void send(int status, std::string content_type, std::string body, Headers extra) override {
    exchange_->send(status, content_type, body, extra);
  }
  void begin(int status, std::string content_type, Headers extra) override {
    exchange_->begin(status, content_type, extra);
  }
  bool write(std::string text) override { return exchange_->write(text); }
  void end() override { exchange_->end(); }
  void on_gone(std::function<void()> gone) override { exchange_->on_gone(std::move(gone)); }
  bool gone() const override { return exchange_->gone(); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace mdi
