// mdi serve: a model behind HTTP, until it is told to end.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "checkpoint/byte_size.h"
#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "cli/usage.h"
#include "engine/engine_plan.h"
#include "engine/load.h"
#include "server/auth.h"
#include "server/log.h"
#include "server/metrics_text.h"
#include "server/route.h"
#include "server/service.h"

namespace mdi {

namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string dir, device = "cpu", listen = "127.0.0.1:8000", key_file, log_format = "text", device_memory, host_memory;
  int32_t threads = 0;
  double tpot_target_ms = 100, drain_seconds = 30;
  bool no_draft = false, no_thinking = false, log_prompts = false;
  uint64_t max_body_mb = 64;
  std::vector<std::string> origins;
  PlanRequest plan;
  EngineOptions engine;
  ServiceOptions service;
  HttpOptions http;
};

void read_listen(const std::string& text, HttpOptions& http) {
  constexpr std::string_view kUnix = "unix:";
  if (text.rfind(kUnix, 0) == 0) {
    http.unix_path = text.substr(kUnix.size());
    if (http.unix_path.empty()) throw Error("--listen", "expected a path after unix:");
    return;
  }
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535) {
    throw Error("--listen", "expected ADDRESS:PORT or unix:PATH, found " + text);
  }
  http.host = text.substr(0, colon);
  if (http.host.size() > 2 && http.host.front() == '[' && http.host.back() == ']') {
    http.host = http.host.substr(1, http.host.size() - 2);
  }
  if (http.host.empty()) throw Error("--listen", "expected an address before the port, such as 127.0.0.1 or 0.0.0.0");
  http.port = static_cast<uint16_t>(std::stoi(port));
}

bool is_loopback(const HttpOptions& http) {
  return !http.unix_path.empty() || http.host == "localhost" || http.host == "::1" || http.host.rfind("127.", 0) == 0;
}

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

int64_t weight_bytes(const fs::path& dir) {
  int64_t sum = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") sum += static_cast<int64_t>(entry.file_size());
  }
  return sum;
}

std::vector<std::pair<std::string, int64_t>> memory_parts(const fs::path& dir, const LoadedModel& loaded,
                                                          const EngineOptions& options) {
  const EngineBytes b = dry_run(loaded.model, *loaded.context, options);
  return {{"weights", weight_bytes(dir)}, {"cache_pools", b.state},    {"step_buffers", b.buffers},
          {"draft_buffers", b.drafts},    {"image_buffers", b.images}, {"graphs", b.graphs},
          {"snapshots", b.snapshots},     {"host_buffers", b.host}};
}

// Until the model is there, the server listens already: health checks pass, clients hear that it is loading.
class Front {
 public:
  Front(Arguments& a, std::shared_ptr<ServerLog> log, KeyRing keys) : log_(std::move(log)) {
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

void serve(Arguments a) {
  usage_checked([&a] {
    read_listen(a.listen, a.http);
    for (const std::string& origin : a.origins) check_origin(origin);
    if (!a.device_memory.empty()) {
      if (a.device == "cpu") throw Error("--device-memory", "expected with --device cuda, which has such memory");
      a.plan.device_memory = parse_size(a.device_memory, "--device-memory");
    }
    if (!a.host_memory.empty()) a.plan.host_memory = parse_size(a.host_memory, "--host-memory");
  });
  a.engine.tpot_target = a.tpot_target_ms * 1e-3;
  a.engine.snapshot_min_tokens = 1;  // a conversation that comes back finds its whole last turn, however short
  a.engine.draft = a.plan.draft = !a.no_draft;
  a.service.thinking = !a.no_thinking;
  a.service.created = static_cast<int64_t>(std::time(nullptr));
  a.http.max_body_bytes = a.max_body_mb << 20;
  a.http.max_bodies_bytes = std::max(a.http.max_bodies_bytes, 4 * a.http.max_body_bytes);
  if (a.service.model_name.empty()) {
    a.service.model_name = fs::path(fs::absolute(a.dir).lexically_normal() / "").parent_path().filename().string();
  }
  KeyRing keys = load_keys(a.key_file, std::getenv("MDI_API_KEYS"));
  if (!fs::is_regular_file(fs::path(a.dir) / "config.json")) {
    throw Error(a.dir, "expected the folder of a checkpoint, found no config.json there");
  }

  const sigset_t signals = block_signals();
  const auto log = std::make_shared<ServerLog>(LogOptions{.json = a.log_format == "json", .prompts = a.log_prompts});
  fit_descriptors(a.http, *log);
  if (keys.empty() && !is_loopback(a.http)) {
    log->say(ServerLog::Level::kWarning, "no API keys: whoever reaches " + a.listen + " can use this server");
  }
  Front front(a, log, std::move(keys));
  log->say(ServerLog::Level::kInfo, "loading " + a.dir + ", listening on " + front.server().address());

  LoadedModel loaded = load_for(a.device, a.dir, a.threads);
  need_tokenizer(loaded, "serve");
  const EngineOptions options = plan_engine(loaded.model, *loaded.context, a.plan, a.engine);
  if (a.service.max_tokens > options.max_length) {
    log->say(ServerLog::Level::kWarning, "--max-tokens " + std::to_string(a.service.max_tokens) + " is more than the " +
                                             std::to_string(options.max_length) +
                                             " tokens that a request has here at most");
  }
  const auto memory = memory_parts(a.dir, loaded, options);
  Service service(*loaded.context, loaded.model, &*loaded.tokenizer, options, a.service);
  Router router = make_router(service);
  Route metrics = metrics_route([&] {
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
  });
  router.add(by_worker(service, std::move(metrics)));
  service.start();
  front.serve(&router);
  log->say(ServerLog::Level::kInfo,
           "serving " + a.service.model_name + " on " + a.device + ": " + std::to_string(options.slots) +
               " sequences at once, " + std::to_string(options.max_length) + " tokens each at most, " +
               std::to_string(options.blocks) + " cache blocks, " + std::to_string(options.snapshots) + " snapshots");
  std::printf("ready on %s\n", front.server().address().c_str());
  std::fflush(stdout);

  const int64_t cut = run_until_told(service, front.server(), signals, a.drain_seconds, *log);
  if (const std::string failure = service.failure(); !failure.empty()) throw Error("engine", failure);
  if (cut > 0) throw Error("serve", "ended with " + std::to_string(cut) + " answers cut off");
}

void add_engine(CLI::App& cmd, Arguments& a) {
  cmd.add_option("--device", a.device, "Where the model runs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  cmd.add_option("--threads", a.threads, "CPU threads; 0: one per core")->check(thread_count())->capture_default_str();
  cmd.add_option("--slots", a.plan.slots, "Sequences that run at once (default: as many as fit, at most 64)")
      ->check(whole(1));
  cmd.add_option("--max-length", a.plan.max_length,
                 "Most tokens of a request, answer included (default: up to 131072, as fits)")
      ->check(whole(1));
  cmd.add_option("--blocks", a.plan.blocks, "Cache blocks of 128 tokens (default: as many as fit)")->check(whole(1));
  cmd.add_option("--snapshots", a.plan.snapshots, "Host buffers of the prefix cache; 0: none (default: as many as fit)")
      ->check(whole(0));
  cmd.add_option("--max-rows", a.plan.max_rows, "Most new tokens of a step (default: as fits)")->check(whole(1));
  cmd.add_option("--device-memory", a.device_memory, "Bytes of the GPU to use, such as 100GB (default: what is free)");
  cmd.add_option("--host-memory", a.host_memory, "Bytes of host memory to use (default: half of what is available)");
  cmd.add_option("--queue", a.engine.max_queue, "Requests that may wait; further ones get 429")
      ->check(whole(1))
      ->capture_default_str();
  cmd.add_option("--tpot-target-ms", a.tpot_target_ms,
                 "Prefill joins decode steps as far as they are predicted to stay below this; 0: no limit")
      ->check(zero_or_more())
      ->capture_default_str();
  cmd.add_flag("--no-draft", a.no_draft, "Do not use the draft layers");
  add_replay(cmd, a.engine.replay);
}

void add_server(CLI::App& cmd, Arguments& a) {
  cmd.add_option("--listen", a.listen, "ADDRESS:PORT (port 0: any free one), or unix:PATH")->capture_default_str();
  cmd.add_option(
      "--api-key-file", a.key_file,
      "API keys, one a line, each of 8 to 512 characters without spaces; more can be given in the environment "
      "variable MDI_API_KEYS, separated by commas or spaces (default: no keys)");
  cmd.add_option("--allow-origin", a.origins, "Let pages of this origin use the server from a browser; * for all");
  cmd.add_option("--max-connections", a.http.max_connections, "Further ones take an idle one's place, or get 503")
      ->check(whole(1, 1000000))
      ->capture_default_str();
  cmd.add_option("--max-body-mb", a.max_body_mb, "Longest body of a request")
      ->check(whole(1, 4096))
      ->capture_default_str();
  cmd.add_option("--drain-seconds", a.drain_seconds, "Time for open answers after SIGTERM")
      ->check(up_to_a_day())
      ->capture_default_str();
  cmd.add_option("--timeout", a.service.timeout, "Seconds that a request may take, queue included; 0: no limit")
      ->check(up_to_a_day())
      ->capture_default_str();
  cmd.add_option("--workers", a.service.workers, "Threads that parse and tokenise requests")
      ->check(whole(1, 256))
      ->capture_default_str();
  cmd.add_option("--log-format", a.log_format, "One line a request, on standard error")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  cmd.add_flag("--log-prompts", a.log_prompts, "Log the bodies of requests, too");
}

void add_answers(CLI::App& cmd, Arguments& a) {
  cmd.add_option("--model-name", a.service.model_name, "What clients call the model (default: the folder's name)");
  cmd.add_flag("--no-thinking", a.no_thinking, "No reasoning where a request does not ask for it");
  cmd.add_option("--effort", a.service.effort, "Reasoning effort where a request does not say")
      ->check(whole(1, 100))
      ->capture_default_str();
  cmd.add_option("--temperature", a.service.temperature, "Where a request does not say")
      ->check(number(0.0, 2.0, "0 to 2"))
      ->capture_default_str();
  cmd.add_option("--top-p", a.service.top_p, "Where a request does not say")
      ->check(number(0.0, 1.0, "0 to 1"))
      ->capture_default_str();
  cmd.add_option("--max-tokens", a.service.max_tokens,
                 "Most tokens of an answer where a request does not say; 0: no limit")
      ->check(whole(0))
      ->capture_default_str();
  cmd.add_option("--max-running-per-client", a.service.max_running_per_client,
                 "Requests of one client (its key, or its address) that run or wait; 0: no limit")
      ->check(whole(0))
      ->capture_default_str();
  cmd.add_flag("--separate-clients", a.service.separate_clients,
               "Clients with different keys share no cached prefixes");
  cmd.add_flag("--allow-remote-images", a.service.allow_remote_images, "Fetch images that requests name by URL");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "serve", "Serve a model over HTTP: OpenAI's and Anthropic's endpoints, a page to chat in, metrics");
  cmd->add_option("DIR", a->dir, "Folder of the checkpoint")->required()->check(some_text());
  add_server(*cmd, *a);
  add_answers(*cmd, *a);
  add_engine(*cmd, *a);
  cmd->footer("Ends on SIGTERM when open answers have ended, at once on SIGINT or a second SIGTERM.");
  cmd->callback([a] { serve(*a); });
}

}  // namespace mdi
