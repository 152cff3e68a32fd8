#include "engine/bench/bench.h"

#include <algorithm>

#include "core/error.h"
#include "engine/load_cuda.h"

#ifdef MDI_WITH_CUDA
#include <chrono>
#include <set>

#include "engine/bench/oracle.h"
#include "engine/bench/runner.h"
#endif

namespace mdi::bench {

double RunResult::median_ms() const {
  if (step_ms.empty()) return 0;
  std::vector<double> sorted = step_ms;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double RunResult::stages_ms() const {
  double sum = 0;
  for (const double ms : stage_ms) sum += ms;
  return sum;
}

#ifdef MDI_WITH_CUDA

namespace {

Machine machine_of(const Rank& rank) {
  return {.device = rank.device,
          .memory = rank.device_total,
          .free = rank.device_free,
          .planned = rank.plan.total,
          .engram = rank.engram,
          .build_seconds = rank.seconds};
}

StepShape shape_of(const Rank& rank, const Step& step) {
  return {.rows = step.rows(),
          .sequences = step.sequences(),
          .context = rank.options.context,
          .samples = step.samples(),
          .kept = step.kept_rows(),
          .bounds_source = step.form == ReplayForm::kFromLastSource,
          .ranks = kRanks,
          .experts = rank.config().n_routed_experts / kRanks,
          .load = rank.expert_load};
}

// One layer of each kind: window only, with engram, sources at both ratios, reuse, candidate source, filtered, last.
std::set<int> layers_of_each_kind(const ModelConfig& c) {
  std::set<int> layers = {0, c.n_layers - 1};
  if (!c.engram_layer_ids.empty()) layers.insert(c.engram_layer_ids.front());
  const int first = c.kv_source_layers.front(), last = c.kv_source_layers.back();
  layers.insert({first, first + 1, last, c.candidate_source_layer});
  for (const int layer : c.index_source_layers) {
    if (layer > c.candidate_source_layer) {
      layers.insert(layer);
      break;
    }
  }
  return layers;
}

}  // namespace

BenchReport bench_step(const StepOptions& options) {
  BenchReport report;
  report.what = "step";
  report.options = options;
  Rank rank = make_rank(options.rank);
  report.machine = machine_of(rank);
  report.load = rank.expert_load;
  const int64_t each = options.rank.rows / options.rank.sequences;
  if (options.check) {
    const Step step = rank_step(rank, each, ReplayForm::kAfterLastSource);
    Oracle oracle(*rank.context, step, rank.state.blocks_count, layers_of_each_kind(rank.config()),
                  {0, rank.config().n_layers - 1});
    check_step(rank, step, oracle);
    report.checks = oracle.results();
    report.check_seconds = oracle.seconds();
  }
  struct Row {
    const char* name;
    int64_t kept;
    ReplayForm form;
  };
  for (const Row& row : {Row{"--replay exact", each, ReplayForm::kAfterLastSource},
                         Row{"--replay 128", std::min<int64_t>(128, each), ReplayForm::kAfterLastSource},
                         Row{"128, layer 20 bounded", std::min<int64_t>(128, each), ReplayForm::kFromLastSource}}) {
    const Step step = rank_step(rank, row.kept, row.form);
    RunResult result = run_steps(rank, step, options, false);
    result.name = row.name;
    result.floor_ms = step_floors(rank.config(), shape_of(rank, step));
    result.wire_bytes = wire_bytes(rank.config(), shape_of(rank, step));
    report.rows.push_back(std::move(result));
  }
  return report;
}

BenchReport bench_decode(const StepOptions& options) {
  BenchReport report;
  report.what = "decode";
  report.options = options;
  Rank rank = make_rank(options.rank);
  report.machine = machine_of(rank);
  report.load = rank.expert_load;
  const Step step = rank_step(rank, 1, ReplayForm::kAfterLastSource);
  for (const bool graph : {true, false}) {
    RunResult result = run_steps(rank, step, options, graph);
    result.name = graph ? "one CUDA graph" : "launch by launch";
    result.floor_ms = step_floors(rank.config(), shape_of(rank, step));
    result.wire_bytes = wire_bytes(rank.config(), shape_of(rank, step));
    report.rows.push_back(std::move(result));
  }
  return report;
}

KernelReport bench_kernels(const StepOptions& options) {
  KernelReport report;
  report.options = options;
  Rank rank = make_rank(options.rank);
  report.machine = machine_of(rank);
  const int64_t each = options.rank.rows / options.rank.sequences;
  const Step step = rank_step(rank, each, ReplayForm::kAfterLastSource);
  TelemetrySampler sampler;
  report.kernels = time_operations(rank, step, layers_of_each_kind(rank.config()));
  report.telemetry = sampler.stop();
  for (KernelTime& k : report.kernels) {
    k.floor_ms = operation_floor(rank.config(), shape_of(rank, step), k.layer, k.name);
  }
  return report;
}

#else

BenchReport bench_step(const StepOptions& options) {
  try {
    need_gpu();
  } catch (const Error& e) {
    throw Error(e.what(), plan_summary(rank_config(), options.rank));
  }
  return {};
}
BenchReport bench_decode(const StepOptions& options) { return bench_step(options); }
KernelReport bench_kernels(const StepOptions& options) {
  bench_step(options);
  return {};
}

#endif

}  // namespace mdi::bench
