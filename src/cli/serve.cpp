// mdi serve: a model behind HTTP, until it is told to end.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/serve_options.h"
#include "engine/engine_plan.h"
#include "engine/load.h"
#include "model/place.h"
#include "server/auth.h"
#include "server/log.h"
#include "server/metrics_text.h"
#include "server/route.h"
#include "server/service.h"

namespace mdi {

namespace {

namespace fs = std::filesystem;

// A connection takes a descriptor: as many as the system allows, and no more connections than fit.
void fit_descriptors(HttpOptions& http, ServerLog& log) {
  constexpr rlim_t kOthers = 64;  // the model's files, standard streams, what the system's libraries open
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = http.max_connections + kOthers + 128;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= wanted) return;
  constexpr rlim_t kOwn = 12, kFew = 16;  // where there are few descriptors, what the server itself has open
  const rlim_t room = limit.rlim_cur > kOthers + kFew ? limit.rlim_cur - kOthers
                                                      : std::min(kFew, std::max(limit.rlim_cur, kOwn + 1) - kOwn);
  if (room >= http.max_connections) return;
  log.say(ServerLog::Level::kWarning, "at most " + std::to_string(room) + " connections instead of " +
                                          std::to_string(http.max_connections) +
                                          ": the system's limit of open files is " + std::to_string(limit.rlim_cur));
  http.max_connections = room;
}

using MemoryParts = std::vector<std::pair<std::string, int64_t>>;  // part, bytes

MemoryParts memory_parts(const LoadedModel& loaded, const EngineOptions& options) {
  const EngineBytes b = dry_run(loaded.model, *loaded.context, options);
  return {{"weights", placed_bytes(loaded.model)},
          {"cache_pools", b.state},
          {"step_buffers", b.buffers},
          {"draft_buffers", b.drafts},
          {"image_buffers", b.images},
          {"graphs", b.graphs},
          {"snapshots", b.snapshots},
          {"host_buffers", b.host}};
}

// Until the model is there, the server listens already: health checks pass, clients hear that it is loading.
class Front {
 public:
  Front(ServeArguments& a, std::shared_ptr<ServerLog> log, KeyRing keys) : log_(std::move(log)) {
    AdmitOptions admit{.keys = std::move(keys), .allowed_origins = a.origins, .loopback = is_loopback(a.http)};
    a.http.admit = [this, check = make_admit(std::move(admit), [this] { return router_.load(); })](
                       HttpRequest& head) -> std::optional<HttpAnswer> {
      std::optional<HttpAnswer> answer = check(head);
      if (!answer) return std::nullopt;
      if (answer->status >= 400) {
        errors_.count(answer->status);
        log_refused(*log_, head, answer->status, "not admitted");
      }
      answer->headers.emplace_back("x-request-id", request_id_of(head));
      return answer;
    };
    a.http.answer_headers = [origins = a.origins](const HttpRequest& head) { return origin_headers(head, origins); };
    a.http.refusal = [this](int status, std::string_view message, const HttpRequest& head) {
      errors_.count(status);
      log_refused(*log_, head, status, message);
      HttpAnswer answer = error_shape_of(head.path)(api_error_of_status(status, std::string(message)));
      answer.status = status;
      if (head.id != 0) answer.headers.emplace_back("x-request-id", request_id_of(head));
      return answer;
    };
    server_ = std::make_unique<HttpServer>(a.http, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      auto logged = std::make_shared<LoggedReply>(std::move(reply), log_, request);
      if (const Router* router = router_.load()) return router->handle(std::move(request), std::move(logged));
      if (request.path == "/health") return logged->send(200, "application/json", "{\"status\":\"loading\"}\n", {});
      const ApiError loading(ApiErrorKind::kUnavailable, "The model is being loaded; try again later.");
      errors_.count(loading.status());
      HttpAnswer answer = error_shape_of(request.path)(loading);
      logged->send(answer.status, answer.content_type, answer.body, answer.headers);
    });
    server_->start();
  }
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // The router outlives the front, or stop() comes before its end.
  void serve(const Router* router) { router_ = router; }
  HttpServer& server() { return *server_; }
  const EarlyErrors& errors() const { return errors_; }

 private:
  const std::shared_ptr<ServerLog> log_;
  std::atomic<const Router*> router_{nullptr};
  EarlyErrors errors_;
  std::unique_ptr<HttpServer> server_;
};

// SIGINT and SIGTERM are waited for in one place; every thread has them blocked.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return set;
}

// The signal that came within this time; 0: none.
int wait_signal(const sigset_t& set, int milliseconds) {
  const timespec time{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

// What is open when the time of a drain is over is told so, which takes a step of the model; then connections close.
constexpr double kLastWords = 2;

// Until a signal comes or the engine fails; then open answers may end. Returns how many were cut off.
int64_t run_until_told(Service& service, HttpServer& server, const sigset_t& signals, double drain_seconds,
                       ServerLog& log) {
  int signal = 0;
  while (signal == 0 && service.failure().empty()) signal = wait_signal(signals, 100);
  service.set_draining();
  if (signal == SIGINT) drain_seconds = 0;
  if (!service.failure().empty()) {
    log.say(ServerLog::Level::kError, "the engine has failed: " + service.failure());
    drain_seconds = std::min(drain_seconds, 5.0);
  }
  log.say(ServerLog::Level::kInfo,
          drain_seconds > 0 ? "ending: open answers are finished, new requests refused" : "ending");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(drain_seconds);
  auto drained = std::async(std::launch::async, [&] { return server.drain(drain_seconds + kLastWords); });
  int64_t cut = 0;
  do {
    if (!log.cutting() && std::chrono::steady_clock::now() >= end) {
      log.set_cutting();
      cut = service.counters().generations;
      service.cancel_all();
    }
    if (wait_signal(signals, 20) != 0) {
      log.set_cutting();
      server.stop();
    }
  } while (drained.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready);
  // What a second signal cuts is gone by the time that the drain counts.
  return std::max({cut, drained.get(), server.counters().gone_stopped});
}

// What can be refused before anything listens. Throws mdi::Error, and what settle() throws.
KeyRing checked(ServeArguments& a) {
  settle(a);
  KeyRing keys = load_keys(a.key_file, std::getenv("MDI_API_KEYS"));
  if (!fs::is_regular_file(fs::path(a.dir) / "config.json")) {
    throw Error(a.dir, "expected the folder of a checkpoint, found no config.json there");
  }
  return keys;
}

struct Planned {
  LoadedModel loaded;
  EngineOptions options;
};

Planned load_and_plan(const ServeArguments& a, ServerLog& log) {
  LoadedModel loaded = load_for(a.device, a.dir, a.threads);
  need_tokenizer(loaded, "serve");
  EngineOptions options = plan_engine(loaded.model, *loaded.context, a.plan, a.engine);
  if (a.service.max_tokens > options.max_length) {
    log.say(ServerLog::Level::kWarning, "--max-tokens " + std::to_string(a.service.max_tokens) + " is more than the " +
                                            std::to_string(options.max_length) +
                                            " tokens that a request has here at most");
  }
  return {.loaded = std::move(loaded), .options = std::move(options)};
}

MetricsInput metrics_of(const Service& service, Front& front, const MemoryParts& memory) {
  MetricsInput in;
  in.engine = service.metrics();
  in.service = service.counters();
  in.http = front.server().counters();
  for (size_t i = 0; i < in.early_errors.size(); ++i) in.early_errors[i] = front.errors().of[i];
  in.model_name = service.options().model_name;
  in.version = kVersion;
  in.start_time = process_start_time();
  in.resident_bytes = process_resident_bytes();
  in.open_files = process_open_files();
  in.memory = memory;
  in.failed = !service.failure().empty();
  in.ready = !in.failed && !service.draining();
  return in;
}

void say_ready(const ServeArguments& a, const EngineOptions& options, const std::string& address, ServerLog& log) {
  log.say(ServerLog::Level::kInfo,
          "serving " + a.service.model_name + " on " + a.device + ": " + std::to_string(options.slots) +
              " sequences at once, " + std::to_string(options.max_length) + " tokens each at most, " +
              std::to_string(options.blocks) + " cache blocks, " + std::to_string(options.snapshots) + " snapshots");
  std::printf("ready on %s\n", address.c_str());
  std::fflush(stdout);
}

void serve(ServeArguments a) {
  KeyRing keys = checked(a);
  const sigset_t signals = block_signals();
  const auto log = std::make_shared<ServerLog>(LogOptions{.json = a.log_format == "json", .prompts = a.log_prompts});
  fit_descriptors(a.http, *log);
  if (keys.empty() && !is_loopback(a.http)) {
    log->say(ServerLog::Level::kWarning, "no API keys: whoever reaches " + a.listen + " can use this server");
  }
  Front front(a, log, std::move(keys));
  log->say(ServerLog::Level::kInfo, "loading " + a.dir + ", listening on " + front.server().address());

  const auto [loaded, options] = load_and_plan(a, *log);
  const MemoryParts memory = memory_parts(loaded, options);
  Service service(*loaded.context, loaded.model, &*loaded.tokenizer, options, a.service);
  Router router = make_router(service);
  router.add(by_worker(service, metrics_route([&] { return metrics_of(service, front, memory); })));
  service.start();
  front.serve(&router);
  say_ready(a, options, front.server().address(), *log);

  const int64_t cut = run_until_told(service, front.server(), signals, a.drain_seconds, *log);
  if (const std::string failure = service.failure(); !failure.empty()) throw Error("engine", failure);
  if (cut > 0) throw Error("serve", "ended with " + std::to_string(cut) + " answers cut off");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto a = std::make_shared<ServeArguments>();
  CLI::App* cmd = app.add_subcommand(
      "serve", "Serve a model over HTTP: OpenAI's and Anthropic's endpoints, a page to chat in, metrics");
  add_serve_options(*cmd, *a);
  cmd->footer("Ends on SIGTERM when open answers have ended, at once on SIGINT or a second SIGTERM.");
  cmd->callback([a] { serve(*a); });
}

}  // namespace mdi
