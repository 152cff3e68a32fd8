#include "engine/bench/runner.h"

#ifdef MDI_WITH_CUDA

#include <algorithm>
#include <chrono>
#include <string>

#include "kernels/cuda/graph.h"

namespace mdi::bench {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return n == 0 ? 0 : n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// More stages than a step has, whatever its rows and its context: a step that needs more is an error.
constexpr size_t kMarks = 1 << 14;

// Of what the stream has passed.
PerStage<double> stage_ms(const StageClock& clock) {
  std::optional<PerStage<double>> seconds = clock.read();
  if (!seconds) throw Error("bench", "a step has more than " + std::to_string(kMarks) + " stages one after the other");
  for (double& s : *seconds) s *= 1e3;
  return *seconds;
}

void run_step(Rank& rank, const Step& step) {
  BenchContext& context = *rank.context;
  forward(context, *rank.model, rank.state, step, *rank.buffers);
  context.begin(Stage::kOther, step.rows());
  commit(context, *rank.model, rank.state, step, *rank.buffers, step.seq_count);
}

// Two events around what is launched between.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    MDI_CUDA(cudaEventCreate(&begin_));
    MDI_CUDA(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  template <class Launch>
  double ms(const Launch& launch) {
    MDI_CUDA(cudaEventRecord(begin_, stream_));
    launch();
    MDI_CUDA(cudaEventRecord(end_, stream_));
    MDI_CUDA(cudaEventSynchronize(end_));
    float elapsed = 0;
    MDI_CUDA(cudaEventElapsedTime(&elapsed, begin_, end_));
    return static_cast<double>(elapsed);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// The step as one graph. Its arrays must be on the device already: copies are left out.
class StepGraph {
 public:
  StepGraph(Rank& rank, const Step& step, StageClock* clock) : context_(*rank.context) {
    BenchContext& context = *rank.context;
    run_step(rank, step);
    MDI_CUDA(cudaStreamSynchronize(context.stream));
    context.copies = false;
    context.clock = clock;
    recorded_ = cuda::record_graph(context, [&] {
      if (clock != nullptr) clock->start(Stage::kOther, step.rows());
      run_step(rank, step);
      if (clock != nullptr) clock->pause();
    });
    context.copies = true;
    context.clock = nullptr;
  }
  ~StepGraph() { cuda::release_graph(context_, recorded_); }
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  void launch() const { cuda::launch_graph(context_, recorded_); }

 private:
  Context& context_;
  void* recorded_ = nullptr;
};

}  // namespace

RunResult run_steps(Rank& rank, const Step& step, const StepOptions& options, bool graph) {
  BenchContext& context = *rank.context;
  RunResult result;
  result.graph = graph;
  StageClock clock(context, kMarks);
  Stopwatch watch(context.stream);
  std::unique_ptr<StepGraph> plain, marked;
  if (graph) {
    plain = std::make_unique<StepGraph>(rank, step, nullptr);
    marked = std::make_unique<StepGraph>(rank, step, &clock);
  }
  std::vector<double> host;
  const auto once = [&](bool marks) {
    return watch.ms([&] {
      const double start = now();
      if (graph) {
        (marks ? *marked : *plain).launch();
      } else {
        context.clock = marks ? &clock : nullptr;
        if (marks) clock.start(Stage::kOther, step.rows());
        run_step(rank, step);
        if (marks) clock.pause();
        context.clock = nullptr;
      }
      host.push_back((now() - start) * 1e3);
    });
  };
  for (const double until = now() + options.warm_seconds; now() < until;) once(false);
  host.clear();
  {
    TelemetrySampler sampler;
    for (int i = 0; i < options.runs; ++i) result.step_ms.push_back(once(false));
    result.telemetry = sampler.stop();
  }
  result.host_ms = median(host);
  std::vector<double> totals;
  PerStage<std::vector<double>> stages;
  for (int i = 0; i < options.runs; ++i) {
    totals.push_back(once(true));
    const PerStage<double> ms = stage_ms(clock);
    for (size_t s = 0; s < kStages; ++s) stages[static_cast<Stage>(s)].push_back(ms[static_cast<Stage>(s)]);
  }
  result.marked_ms = median(totals);
  for (size_t s = 0; s < kStages; ++s) result.stage_ms[static_cast<Stage>(s)] = median(stages[static_cast<Stage>(s)]);
  return result;
}

void check_step(Rank& rank, const Step& step, Oracle& oracle) {
  BenchContext& context = *rank.context;
  context.oracle = &oracle;
  run_step(rank, step);
  context.oracle = nullptr;
  MDI_CUDA(cudaStreamSynchronize(context.stream));
}

std::vector<KernelTime> time_operations(Rank& rank, const Step& step, const std::set<int>& layers) {
  BenchContext& context = *rank.context;
  struct Operation {
    KernelTime time;
    std::function<void()> again;
  };
  std::vector<Operation> operations;
  // What depends on the layer's kind; the others once.
  const std::set<std::string> by_kind = {"compress", "engram", "index select", "sparse attention"};
  std::set<std::string> seen;
  context.recorder = [&](Stage stage, int layer, const char* name, std::function<void()> again) {
    if (layer >= 0 && layers.count(layer) == 0) return;
    if (!seen.insert(name).second && by_kind.count(name) == 0) return;
    operations.push_back({{.stage = stage, .name = name, .layer = layer}, std::move(again)});
  };
  run_step(rank, step);
  context.recorder = nullptr;
  MDI_CUDA(cudaStreamSynchronize(context.stream));
  Stopwatch watch(context.stream);
  StageClock clock(context, kMarks);
  std::vector<KernelTime> times;
  for (Operation& op : operations) {
    const auto run = [&] {
      context.layer = op.time.layer;
      op.again();
    };
    // As many in a row as take 4 ms, so that a launch's gap counts for little.
    const double first = watch.ms(run);
    const int batch = static_cast<int>(std::clamp(4.0 / std::max(first, 1e-3), 1.0, 64.0));
    const auto round = [&] {
      for (int i = 0; i < batch; ++i) run();
    };
    for (const double until = now() + 0.4; now() < until;) watch.ms(round);
    std::vector<double> ms;
    for (const double until = now() + 0.2; ms.size() < 20 || now() < until;) ms.push_back(watch.ms(round) / batch);
    op.time.ms = median(ms);
    clock.start(op.time.stage, step.rows());
    context.clock = &clock;
    round();
    context.clock = nullptr;
    clock.pause();
    MDI_CUDA(cudaStreamSynchronize(context.stream));
    op.time.parts = stage_ms(clock);
    for (double& part : op.time.parts) part /= batch;
    times.push_back(op.time);
  }
  context.layer = -1;
  return times;
}

}  // namespace mdi::bench

#endif
