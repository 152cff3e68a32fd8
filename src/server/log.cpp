#include "server/log.h"

#include <sodium.h>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "core/printable.h"
#include "core/stderr_text.h"
#include "text/ordered_json.h"

namespace mdi {

namespace {

constexpr size_t kLines = 8192;  // that may wait to be written
constexpr size_t kMaxPrompt = 64 << 10;

using Fields = std::vector<std::pair<std::string, std::string>>;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789.") == std::string_view::npos &&
         text.front() != '.' && text.back() != '.' && std::count(text.begin(), text.end(), '.') <= 1 &&
         (text.size() == 1 || text.front() != '0' || text[1] == '.');
}

bool is_plain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != '"'; });
}

std::string json_text(std::string_view text) {
  return OrderedJson(std::string(text)).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4f", seconds);
  return text.data();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kStopString:
      return "stop_string";
    case Finish::kLength:
      return "length";
    case Finish::kToolCalls:
      return "tool_calls";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kDeadline:
      return "deadline";
    case Finish::kError:
      return "error";
  }
  return "";
}

spdlog::level::level_enum level_of(ServerLog::Level level) {
  return level == ServerLog::Level::kInfo      ? spdlog::level::info
         : level == ServerLog::Level::kWarning ? spdlog::level::warn
                                               : spdlog::level::err;
}

const char* name_of(ServerLog::Level level) {
  return level == ServerLog::Level::kInfo ? "info" : level == ServerLog::Level::kWarning ? "warning" : "error";
}

}  // namespace

struct ServerLog::Sink {
  // Lines go to standard error while its reader takes them; at the end what it does not take within a second is lost.
  class Stderr : public spdlog::sinks::base_sink<std::mutex> {
   public:
    void end() { last_ns_ = now_ns() + 1000000000; }

   protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
      spdlog::memory_buf_t text;
      formatter_->format(message, text);
      write_stderr({text.data(), text.size()}, [this] { return now_ns() >= last_ns_; });
    }
    void flush_() override {}

   private:
    static int64_t now_ns() {
      return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }
    std::atomic<int64_t> last_ns_{INT64_MAX};
  };

  std::shared_ptr<Stderr> out;
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> logger;
};

ServerLog::ServerLog(LogOptions options) : options_(options), sink_(std::make_unique<Sink>()) {
  sink_->pool = std::make_shared<spdlog::details::thread_pool>(kLines, 1);
  sink_->out = std::make_shared<Sink::Stderr>();
  sink_->logger = std::make_shared<spdlog::async_logger>("mdi", sink_->out, sink_->pool,
                                                         spdlog::async_overflow_policy::overrun_oldest);
  // The line is made here; the pattern adds the time, in UTC.
  sink_->logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      options_.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %v",
      spdlog::pattern_time_type::utc));
}

ServerLog::~ServerLog() {
  sink_->out->end();
  sink_->logger.reset();
  sink_->pool.reset();
}

void ServerLog::say(Level level, std::string_view message) { line(level, message, {}); }

void ServerLog::line(Level level, std::string_view event, const Fields& fields) {
  std::string text;
  if (options_.json) {
    text += std::string("\"level\":\"") + name_of(level) + "\",\"event\":" + json_text(event);
    for (const auto& [name, value] : fields) {
      text += ",\"" + name + "\":" + (is_number(value) ? value : json_text(value));
    }
  } else {
    text += std::string(name_of(level)) + ' ' + std::string(event);
    for (const auto& [name, value] : fields) text += ' ' + name + '=' + (is_plain(value) ? value : json_text(value));
  }
  sink_->logger->log(level_of(level), spdlog::string_view_t(text.data(), text.size()));
}

void RequestNote::take(const AnswerPart& part) {
  if (part.silence) return;
  const std::lock_guard lock(mutex_);
  if (first_token_ < 0 && part.total.completion_tokens > 0) first_token_ = seconds_since(start_);
  if (part.finish) finish_ = finish_name(*part.finish);
  if (!part.last) return;
  usage_.prompt_tokens += part.total.prompt_tokens;
  usage_.cached_tokens += part.total.cached_tokens;
  usage_.completion_tokens += part.total.completion_tokens;
  ++generations_;
}

std::string request_id_of(const HttpRequest& head) {
  const std::string_view given = head.header("x-request-id");
  const bool sane = !given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_.:").find(c) != std::string_view::npos;
  });
  if (sane) return std::string(given);
  static const std::string process = [] {  // so that ids of two runs of a server differ
    std::array<char, 9> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", sodium_init() < 0 ? 0U : randombytes_random());
    return std::string(digits.data());
  }();
  return "req-" + process + "-" + std::to_string(head.id);
}

LoggedReply::LoggedReply(std::shared_ptr<HttpReply> reply, std::shared_ptr<ServerLog> log, const HttpRequest& request)
    : reply_(std::move(reply)),
      log_(std::move(log)),
      id_(request_id_of(request)),
      method_(request.method),
      path_(request.path),
      peer_(request.peer),
      start_(std::chrono::steady_clock::now()),
      note_(std::shared_ptr<RequestNote>(new RequestNote(start_))) {
  if (!log_->options().prompts || request.body.empty()) return;
  log_->line(
      ServerLog::Level::kInfo, "request body",
      {{"id", id_}, {"body", request.body.substr(0, kMaxPrompt)}, {"bytes", std::to_string(request.body.size())}});
}

LoggedReply::~LoggedReply() {
  try {
    const int64_t ended = ended_ns_;
    const double duration = ended < 0 ? seconds_since(start_) : static_cast<double>(ended) * 1e-9;
    Fields fields{{"id", id_},
                  {"method", printable(method_, 20)},
                  {"path", printable(path_, 100)},
                  {"status", std::to_string(status_)},
                  {"duration", seconds_text(duration)},
                  {"bytes", std::to_string(bytes_)},
                  {"client", peer_}};
    bool cancelled = false;
    {
      const std::lock_guard lock(note_->mutex_);
      if (note_->first_token_ >= 0) fields.emplace_back("ttft", seconds_text(note_->first_token_));
      if (note_->generations_ > 0) {
        fields.emplace_back("prompt_tokens", std::to_string(note_->usage_.prompt_tokens));
        fields.emplace_back("cached_tokens", std::to_string(note_->usage_.cached_tokens));
        fields.emplace_back("completion_tokens", std::to_string(note_->usage_.completion_tokens));
        fields.emplace_back("finish", note_->finish_);
        cancelled = note_->finish_ == finish_name(Finish::kCancelled);
      }
    }
    const bool cut = log_->cutting() && (reply_->gone() || cancelled);
    fields.emplace_back("end", cut              ? "server ending"
                               : reply_->gone() ? "client gone"
                               : ended < 0      ? "dropped"
                                                : "answered");
    log_->line(status_ >= 500 ? ServerLog::Level::kError : ServerLog::Level::kInfo, "request", fields);
  } catch (const std::exception&) {  // out of memory: the line is lost, the server goes on
  }
}

void LoggedReply::add_headers(Headers& headers) const {
  headers.emplace_back("x-request-id", id_);
  const bool has = std::any_of(headers.begin(), headers.end(), [](const auto& h) { return h.first == "request-id"; });
  if (!has) headers.emplace_back("request-id", id_);
}

void LoggedReply::ended(int status) {
  if (status != 0) status_ = status;
  int64_t unset = -1;
  ended_ns_.compare_exchange_strong(
      unset, std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count());
}

void LoggedReply::send(int status, std::string content_type, std::string body, Headers extra) {
  add_headers(extra);
  bytes_ += static_cast<int64_t>(body.size());
  ended(status);
  reply_->send(status, std::move(content_type), std::move(body), std::move(extra));
}

void LoggedReply::begin(int status, std::string content_type, Headers extra) {
  add_headers(extra);
  status_ = status;
  reply_->begin(status, std::move(content_type), std::move(extra));
}

bool LoggedReply::write(std::string text) {
  bytes_ += static_cast<int64_t>(text.size());
  return reply_->write(std::move(text));
}

void LoggedReply::end() {
  ended(0);
  reply_->end();
}

AnswerCallback noted(const std::shared_ptr<HttpReply>& reply, AnswerCallback answer) {
  const auto logged = std::dynamic_pointer_cast<LoggedReply>(reply);
  if (logged == nullptr) return answer;
  return [note = logged->note(), answer = std::move(answer)](const AnswerPart& part) {
    note->take(part);
    answer(part);
  };
}

void log_refused(ServerLog& log, const HttpRequest& head, int status, std::string_view why) {
  Fields fields{{"id", request_id_of(head)}, {"status", std::to_string(status)}};
  if (!head.path.empty()) {
    fields.emplace_back("method", printable(head.method, 20));
    fields.emplace_back("path", printable(head.path, 100));
  }
  if (!head.peer.empty()) fields.emplace_back("client", head.peer);
  fields.emplace_back("end", "refused");
  fields.emplace_back("why", printable(why, 200));
  log.line(ServerLog::Level::kInfo, "request", fields);
}

}  // namespace mdi
