// A day of requests played to an engine in this process: what users see (time to the first token, time per token) and
// what it costs (throughput, hit rate, preemptions, step times).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace mdi {

struct TraceRequest {
  double arrival = 0;  // seconds from the start
  int32_t prompt_tokens = 1, output_tokens = 1;
  // Requests of one group begin with the same `prefix_tokens` tokens; -1: with nobody's.
  int64_t prefix_group = -1;
  int32_t prefix_tokens = 0;
  int32_t n = 1;
};

// One JSON object a line: {"arrival": 0.5, "prompt_tokens": 300, "output_tokens": 40}, and where wanted "prefix_group",
// "prefix_tokens" and "n". Throws mdi::Error with the file and line. Sorted by arrival.
std::vector<TraceRequest> read_trace(const std::filesystem::path& file);

struct SyntheticTrace {
  int32_t requests = 64;
  double rate = 8;  // arrivals a second, at random (Poisson); 0: all at once
  int32_t prompt_min = 16, prompt_max = 256, output_min = 8, output_max = 64;  // lengths, logarithmically uniform
  double shared = 0.5;                                                         // of the requests share a beginning
  int32_t groups = 4;                                                          // with the others of one of these groups
  int32_t prefix_tokens = 128;
  uint64_t seed = 1;
};
// The same options give the same trace. Throws mdi::Error for options that make none.
std::vector<TraceRequest> synthetic_trace(const SyntheticTrace& options);

// The tokens of the trace's request `index`: random ones behind its group's.
std::vector<int32_t> trace_prompt(const TraceRequest& request, size_t index, int32_t vocab);

struct Spread {
  double p50 = 0, p90 = 0, p99 = 0, most = 0;
};

struct ServeReport {
  int64_t requests = 0, refused = 0, failed = 0;  // refused: the queue was full
  double seconds = 0;                             // from the first arrival to the last token
  int64_t prompt_tokens = 0, generated_tokens = 0;
  Spread first_token, per_token;  // seconds; from arrival, and between a sequence's tokens on average
  EngineMetrics engine;
};

struct ServeLoad {
  SamplingParams sampling{.temperature = 0};
  double speed = 1;  // arrivals come this much faster
  bool draft = true;
};

// Plays the trace to an engine whose thread is not running; ends when every request has. Throws mdi::Error, before
// anything is submitted, for a trace with a request that the engine would not take, and with Engine::failure() where a
// step fails.
ServeReport play_trace(Engine& engine, const std::vector<TraceRequest>& trace, const ServeLoad& load, int32_t vocab);

std::string serve_text(const ServeReport& report);
std::string serve_json(const ServeReport& report);

}  // namespace mdi
