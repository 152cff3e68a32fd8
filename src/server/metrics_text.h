// GET /metrics: what the engine, the service and the transport count, in Prometheus' text format (version 0.0.4).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics.h"
#include "http/server.h"
#include "server/route.h"
#include "server/service.h"

namespace mdi {

struct MetricsInput {
  EngineMetrics engine;
  ServiceCounters service;
  HttpCounters http;
  std::array<int64_t, 10> early_errors = {};  // EarlyErrors
  std::string model_name, version;
  double start_time = 0;       // of the process, Unix seconds
  int64_t resident_bytes = 0;  // of the process
  int64_t open_files = 0;
  std::vector<std::pair<std::string, int64_t>> memory;  // part, bytes: what was allocated at start
  bool ready = false, failed = false;
};

// Every sample has its HELP and TYPE line before it; names begin with mdi_, but for process_* where others agree.
std::string metrics_text(const MetricsInput& input);

// What the system says of this process.
int64_t process_resident_bytes();
int64_t process_open_files();
double process_start_time();

// input is called for each request, on the transport's thread: it must not wait.
Route metrics_route(std::function<MetricsInput()> input);

}  // namespace mdi
