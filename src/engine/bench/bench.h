// `mdi bench`: what a rank's step costs, stage by stage, against what the hardware allows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/bench/compare.h"
#include "engine/bench/floors.h"
#include "engine/bench/rank.h"
#include "engine/bench/telemetry.h"

namespace mdi::bench {

// One way to run the step: ten runs after at least two seconds of the same load.
struct RunResult {
  std::string name;             // "--replay exact", ...
  std::vector<double> step_ms;  // of each run, without marks; forward and commit
  PerStage<double> stage_ms{};  // medians of ten more runs with a mark at each stage
  PerStage<double> floor_ms{};
  double marked_ms = 0;   // the median of those
  double host_ms = 0;     // to launch a step
  double wire_bytes = 0;  // received by a rank
  bool graph = false;     // the step was launched as one CUDA graph
  Telemetry telemetry;

  double median_ms() const;
  double stages_ms() const;  // their sum
};

struct Machine {
  std::string device;
  uint64_t memory = 0, free = 0, planned = 0;
  EngramPlacement engram;
  double build_seconds = 0;
};

struct StepOptions {
  RankOptions rank;
  double link_gbs = 450;  // for the wire's time: what a rank receives at once
  bool check = true;
  double warm_seconds = 2;
  int runs = 10;
};

struct BenchReport {
  std::string what;  // "step", "decode"
  StepOptions options;
  Machine machine;
  std::vector<ExpertLoad> load;
  std::vector<RunResult> rows;
  std::vector<Checked> checks;
  double check_seconds = 0;
};

// One operation alone: the median of at least 20 runs after 0.4 s of itself.
struct KernelTime {
  Stage stage = Stage::kOther;
  std::string name;
  int layer = -1;
  double ms = 0, floor_ms = 0;
  PerStage<double> parts{};  // where one operation is several stages
};

struct KernelReport {
  Machine machine;
  StepOptions options;
  std::vector<KernelTime> kernels;
  Telemetry telemetry;
};

// Throw mdi::Error before anything is made when this build has no CUDA backend, or the GPU is missing, of another
// architecture or too small.
BenchReport bench_step(const StepOptions& options);
BenchReport bench_decode(const StepOptions& options);
KernelReport bench_kernels(const StepOptions& options);

}  // namespace mdi::bench
