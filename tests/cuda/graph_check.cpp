// Recorded steps on the GPU: a graph of a padded step gives the bits of the step launched operation by operation, over
// random mixes of sequences, contexts and blocks to verify, with poison in all that is not a real row's; serving
// allocates, captures and loads nothing, also where steps are measured by stage; a measured step's stages add up to it.
// With --time, what a decode step takes both ways. The tiny text model; where MDI_SLICE names a checkpoint (`mdi synth
// DIR --preset slice`), that one too.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "../engine/mixed_requests.h"
#include "../model/padded_steps.h"
#include "engine/runner.h"
#include "find_golden.h"
#include "harness.h"
#include "kernels/cuda/loading.h"
#include "model/place.h"

// The linker sends the backend's calls here (tests/CMakeLists.txt).
namespace {
int64_t set_up_calls = 0;
}
extern "C" {
cudaError_t __real_cudaMalloc(void**, size_t);
cudaError_t __wrap_cudaMalloc(void** p, size_t bytes) {
  ++set_up_calls;
  return __real_cudaMalloc(p, bytes);
}
cudaError_t __real_cudaMallocAsync(void**, size_t, cudaStream_t);
cudaError_t __wrap_cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  ++set_up_calls;
  return __real_cudaMallocAsync(p, bytes, stream);
}
cudaError_t __real_cudaMallocHost(void**, size_t);
cudaError_t __wrap_cudaMallocHost(void** p, size_t bytes) {
  ++set_up_calls;
  return __real_cudaMallocHost(p, bytes);
}
cudaError_t __real_cudaHostAlloc(void**, size_t, unsigned);
cudaError_t __wrap_cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
  ++set_up_calls;
  return __real_cudaHostAlloc(p, bytes, flags);
}
cudaError_t __real_cudaEventCreate(cudaEvent_t*);
cudaError_t __wrap_cudaEventCreate(cudaEvent_t* event) {
  ++set_up_calls;
  return __real_cudaEventCreate(event);
}
cudaError_t __real_cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ++set_up_calls;
  return __real_cudaEventCreateWithFlags(event, flags);
}
cudaError_t __real_cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t __wrap_cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  ++set_up_calls;
  return __real_cudaStreamBeginCapture(stream, mode);
}
cudaError_t __real_cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long);
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  ++set_up_calls;
  return __real_cudaGraphInstantiate(exec, graph, flags);
}
}

namespace mdi::check {

namespace {

struct Subject {
  Harness& h;
  std::string name;
  const Model& model;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::shared_ptr<Context> shared(Harness& h) {
  return {&h.cuda(), [](Context*) {}};
}

void check_mixes(const Subject& s, int sequences, int64_t length, int32_t block, int steps, uint32_t seed) {
  const auto run = testing::compare_padded(s.model, shared(s.h), sequences, length, block, steps, true, seed);
  const std::string note = std::to_string(run.steps) + " steps, " + std::to_string(run.rows) + " rows and " +
                           std::to_string(run.padding) + " of padding, " + std::to_string(run.shapes) + " graphs" +
                           (run.wrong.empty() ? "" : ": " + run.wrong);
  s.h.expect("graph mixes", s.name + ", " + std::to_string(sequences) + " sequences", run.wrong.empty(), note);
}

// measure_every: of the steps of a kind, one is measured by stage.
void check_serving(const Subject& s, int32_t measure_every) {
  const int requests = s.h.small() ? 5 : 20;
  EngineOptions o;
  o.measure_every = measure_every;
  o.slots = s.h.small() ? 2 : 6;
  o.max_length = testing::kMixedLength;
  o.snapshot_min_tokens = 1;
  o.draft_always = true;
  o.preempt_every = 9;
  const int64_t before = set_up_calls;
  const double start = seconds();
  Engine engine(s.h.cuda(), s.model, nullptr, o);
  const double ready = seconds() - start;
  const int64_t at_start = set_up_calls;
  size_t free_before = 0, free_after = 0, total = 0;
  MDI_CUDA(cudaMemGetInfo(&free_before, &total));
  int answers = 0;
  for (int i = 0; i < requests; ++i) {
    Request r;
    r.prompt = testing::mixed_prompt(i % 10);
    r.max_tokens = 12;
    r.n = i % 4 == 0 ? 3 : 1;
    r.sampling.temperature = 0;
    answers += r.n;
    engine.submit(std::move(r));
  }
  engine.run();
  MDI_CUDA(cudaMemGetInfo(&free_after, &total));
  const EngineMetrics m = engine.metrics();
  // Free memory is that of the GPU, which other processes may use too: shown, not judged.
  s.h.expect("graph serving sets up nothing", s.name + ", one step in " + std::to_string(measure_every) + " measured",
             set_up_calls == at_start && at_start > before && m.ended_length == answers && m.steps_recorded > 0 &&
                 m.decode_stages.steps > 0,
             std::to_string(at_start - before) + " allocations and captures in " +
                 std::to_string(static_cast<int64_t>(1e3 * ready)) + " ms at start, " +
                 std::to_string(set_up_calls - at_start) + " while serving, " + std::to_string(m.steps_recorded) +
                 " of " + std::to_string(m.steps) + " steps from graphs, " +
                 std::to_string(m.prefill_stages.steps + m.decode_stages.steps) + " measured, free memory changed by " +
                 std::to_string(static_cast<int64_t>(free_after) - static_cast<int64_t>(free_before)) + " bytes");
}

// Sequences of one length that decode.
struct Decoding {
  Context& context;
  Runner runner;
  int32_t sequences;
  std::vector<std::vector<int32_t>> tables;

  Decoding(const Subject& s, int32_t count, int32_t length, int64_t max_length, bool record)
      : context(s.h.cuda()),
        runner(context, s.model,
               {.slots = count,
                .blocks = static_cast<int32_t>(blocks_for(length + 200)) * count,
                .snapshots = 0,
                .max_rows = 512,
                .max_samples = count,
                .max_length = max_length,
                .drafts = false,
                .record = record,
                .measure = true}),
        sequences(count) {
    const auto blocks = static_cast<int32_t>(blocks_for(length + 200));
    for (int32_t i = 0; i < sequences; ++i) tables.push_back(testing::iota_blocks(i * blocks, blocks));
    for (int32_t i = 0; i < sequences; ++i) {
      for (int32_t at = 0; at < length; at += 512) {
        const auto tokens = testing::some_tokens(std::min(512, length - at), static_cast<uint32_t>(at + i));
        start(i, 1, at, tokens, false);
        runner.fetch();
        commit(1, tokens);
      }
    }
  }
  void start(int32_t first, int32_t count, int32_t at, const std::vector<int32_t>& tokens, bool measured) {
    const std::vector<int32_t> sample = {static_cast<int32_t>(tokens.size()) - 1};
    std::vector<StepSequence> parts;
    for (int32_t i = first; i < first + count; ++i) {
      StepSequence part;
      part.slot = i;
      part.start = at;
      part.tokens = tokens;
      part.blocks = tables[static_cast<size_t>(i)];
      part.sample_tokens = sample;
      parts.push_back(part);
    }
    runner.start(parts, ReplayForm::kAfterLastSource, {}, measured);
  }
  void commit(int32_t count, const std::vector<int32_t>& tokens) {
    runner.commit(std::vector<int32_t>(static_cast<size_t>(count), static_cast<int32_t>(tokens.size())));
  }
};

// Median of a decode step of `sequences` sequences behind `context` tokens, logits on the host and commit asked for.
double step_ms(const Subject& s, int32_t sequences, int32_t context, int64_t max_length, bool record) {
  Decoding d(s, sequences, context, max_length, record);
  std::vector<double> ms;
  for (int32_t n = 0; n < 150; ++n) {
    const double start = seconds();
    d.start(0, sequences, context + n, {7 + n}, false);
    d.runner.fetch();
    d.commit(sequences, {7 + n});
    if (n >= 50) ms.push_back(1e3 * (seconds() - start));
  }
  std::nth_element(ms.begin(), ms.begin() + 50, ms.end());
  return ms[50];
}

// The stages of a measured step against events around its forward and its commit, median of 21 steps.
void check_stages(const Subject& s, int32_t sequences, int32_t tokens) {
  constexpr int32_t kLength = 100;
  constexpr size_t kSteps = 21;
  Decoding d(s, sequences, kLength, 4096, true);
  cudaStream_t stream = s.h.cuda().stream;
  cudaEvent_t events[4];
  for (cudaEvent_t& event : events) MDI_CUDA(cudaEventCreate(&event));
  std::vector<double> shares;
  double last = 0;
  while (shares.size() < kSteps) {
    const auto step = testing::some_tokens(tokens, static_cast<uint32_t>(shares.size()));
    MDI_CUDA(cudaEventRecord(events[0], stream));
    d.start(0, sequences, kLength, step, true);
    MDI_CUDA(cudaEventRecord(events[1], stream));
    d.runner.fetch();
    MDI_CUDA(cudaEventRecord(events[2], stream));
    // Nothing is kept, so that the next step is the same.
    d.runner.commit(std::vector<int32_t>(static_cast<size_t>(sequences), 0));
    MDI_CUDA(cudaEventRecord(events[3], stream));
    MDI_CUDA(cudaStreamSynchronize(stream));
    float forward = 0, commit = 0;
    MDI_CUDA(cudaEventElapsedTime(&forward, events[0], events[1]));
    MDI_CUDA(cudaEventElapsedTime(&commit, events[2], events[3]));
    const std::optional<PerStage<double>> stages = d.runner.take_stages();
    double sum = 0;
    for (size_t i = 0; stages && i < kStages; ++i) sum += 1e3 * (*stages)[static_cast<Stage>(i)];
    last = static_cast<double>(forward + commit);
    shares.push_back(sum / last);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::nth_element(shares.begin(), shares.begin() + kSteps / 2, shares.end());
  const double share = shares[kSteps / 2];
  s.h.expect("graph stages add up", s.name + ", " + std::to_string(sequences) + " x " + std::to_string(tokens),
             share >= 0.95 && share <= 1.001 && d.runner.recorded_steps() == 0,
             std::to_string(100 * share) + " % of a step of " + std::to_string(last) + " ms");
}

void time_steps(const Subject& s) {
  for (const auto& [sequences, context, limit] :
       {std::tuple{1, 100, 4096}, {8, 100, 4096}, {32, 100, 4096}, {1, 100, 1 << 20}, {1, 3000, 1 << 20}}) {
    const double plain = step_ms(s, sequences, context, limit, false);
    const double graph = step_ms(s, sequences, context, limit, true);
    std::printf("TIME decode step, %s, %d sequences of %d tokens, limit %d: %.3f ms launched, %.3f ms as a graph\n",
                s.name.c_str(), sequences, context, limit, plain, graph);
  }
}

void check_placed(Harness& h, const std::string& name, Model model) {
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  const Subject s{h, name, model};
  if (h.wants("graph mixes")) {
    const int steps = h.small() ? 4 : 60;
    check_mixes(s, 5, 300, 6, steps, 1);
    if (!h.small()) {
      check_mixes(s, 3, 2300, 6, steps, 2);
      check_mixes(s, 24, 300, 6, steps, 3);
    }
  }
  if (h.wants("graph serving")) {
    if (!h.small()) check_serving(s, 64);
    check_serving(s, 3);
  }
  if (h.wants("graph stages") && !h.small()) {
    for (const auto& [sequences, tokens] : {std::pair{1, 1}, {4, 1}, {2, 60}}) check_stages(s, sequences, tokens);
  }
  if (h.timing()) time_steps(s);
}

int run(int argc, char** argv) {
  Harness h("graph", argc, argv, int64_t{2} << 30);
  h.expect("graph kernels load at start", "", cuda::kernels_load_at_start());
  find_golden();
  check_placed(h, "tiny-text", testing::load_tiny_model());
  const char* wide = std::getenv("MDI_SLICE");
  if (wide != nullptr && !h.small()) check_placed(h, "slice", testing::load_checkpoint(wide));
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
