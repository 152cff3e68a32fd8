// The server's log: one line for each request when it has ended, and lines about the server itself. Prompts and answers
// are not in it unless asked for (LogOptions::prompts); keys never are.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "server/answer.h"
#include "server/service.h"

namespace spdlog {
class logger;
}

namespace mdi {

struct LogOptions {
  bool json = false;     // an object a line; else text
  bool prompts = false;  // bodies of requests, up to 64 KB each
};

// Writes to standard error from a thread of its own: who logs does not wait, and a reader that is too slow loses the
// oldest lines. From any thread.
class ServerLog {
 public:
  explicit ServerLog(LogOptions options);
  ~ServerLog();  // what is left is written, if it is read within a second
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;

  enum class Level : uint8_t { kInfo, kWarning, kError };
  void say(Level level, std::string_view message);
  // fields: name, value; a value that is a number is written as one.
  void line(Level level, std::string_view event, const std::vector<std::pair<std::string, std::string>>& fields);
  const LogOptions& options() const { return options_; }
  // From now on what is cut off or cancelled was so by the server.
  void set_cutting() { cutting_ = true; }
  bool cutting() const { return cutting_; }

 private:
  struct Sink;
  std::atomic<bool> cutting_{false};
  LogOptions options_;
  std::unique_ptr<Sink> sink_;
};

// What a generation adds to its request's line. A request may have several.
class RequestNote {
 public:
  void take(const AnswerPart& part);

 private:
  friend class LoggedReply;
  explicit RequestNote(std::chrono::steady_clock::time_point start) : start_(start) {}

  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  AnswerUsage usage_;
  int generations_ = 0;
  double first_token_ = -1;
  std::string finish_;
};

// The id of a request: its x-request-id where that is 1 to 128 letters, digits and -_.:, else one of this server's.
std::string request_id_of(const HttpRequest& head);

// The reply that endpoints get: adds the request's id to the answer (x-request-id, and request-id as Anthropic's
// clients read it), and writes the line when the last reference goes.
class LoggedReply : public HttpReply {
 public:
  LoggedReply(std::shared_ptr<HttpReply> reply, std::shared_ptr<ServerLog> log, const HttpRequest& request);
  ~LoggedReply() override;
  LoggedReply(const LoggedReply&) = delete;
  LoggedReply& operator=(const LoggedReply&) = delete;

  void send(int status, std::string content_type, std::string body, Headers extra) override;
  void begin(int status, std::string content_type, Headers extra) override;
  bool write(std::string text) override;
  void end() override;
  void on_gone(std::function<void()> gone) override { reply_->on_gone(std::move(gone)); }
  bool gone() const override { return reply_->gone(); }

  const std::shared_ptr<RequestNote>& note() const { return note_; }

 private:
  void add_headers(Headers& headers) const;
  void ended(int status);

  const std::shared_ptr<HttpReply> reply_;
  const std::shared_ptr<ServerLog> log_;
  const std::string id_, method_, path_, peer_;
  const std::chrono::steady_clock::time_point start_;
  const std::shared_ptr<RequestNote> note_;
  std::atomic<int> status_{0};
  std::atomic<int64_t> bytes_{0}, ended_ns_{-1};
};

// `answer`, which also leaves what the generation used in the line of the reply's request. What is not a LoggedReply
// has no line.
AnswerCallback noted(const std::shared_ptr<HttpReply>& reply, AnswerCallback answer);

// The line of a request that was refused before an endpoint saw it.
void log_refused(ServerLog& log, const HttpRequest& head, int status, std::string_view why);

}  // namespace mdi
