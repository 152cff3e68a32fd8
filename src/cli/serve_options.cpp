#include "cli/serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/byte_size.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "cli/usage.h"
#include "core/error.h"
#include "server/auth.h"

namespace mdi {

namespace {

namespace fs = std::filesystem;

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

void add_engine(CLI::App& cmd, ServeArguments& a) {
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

void add_server(CLI::App& cmd, ServeArguments& a) {
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

void add_answers(CLI::App& cmd, ServeArguments& a) {
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

void add_serve_options(CLI::App& command, ServeArguments& a) {
  command.add_option("DIR", a.dir, "Folder of the checkpoint")->required()->check(some_text());
  add_server(command, a);
  add_answers(command, a);
  add_engine(command, a);
}

void settle(ServeArguments& a) {
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
}

bool is_loopback(const HttpOptions& http) {
  return !http.unix_path.empty() || http.host == "localhost" || http.host == "::1" || http.host.rfind("127.", 0) == 0;
}

}  // namespace mdi
