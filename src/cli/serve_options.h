// What `mdi serve` is told on its command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_plan.h"
#include "http/server.h"
#include "server/service.h"

namespace CLI {
class App;
}

namespace mdi {

struct ServeArguments {
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

// `a` outlives the command.
void add_serve_options(CLI::App& command, ServeArguments& a);

// Puts into plan, engine, service and http what the other members say. Throws CLI::ValidationError that names the
// option.
void settle(ServeArguments& a);

// The server listens where only this machine reaches it.
bool is_loopback(const HttpOptions& http);

}  // namespace mdi
