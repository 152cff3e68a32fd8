// Recorded steps on the GPU: a graph of a padded step gives the bits of the step launched operation by operation, over
// random mixes of sequences, contexts and blocks to verify, with poison in all that is not a real row's; serving
// allocates, captures and loads nothing. With --time, what a decode step takes both ways. The tiny text model; where
// MDI_SLICE names a checkpoint (`mdi synth DIR --preset slice`), that one too.
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

void check_serving(const Subject& s) {
  const int requests = s.h.small() ? 5 : 20;
  EngineOptions o;
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
  s.h.expect("graph serving sets up nothing", s.name,
             set_up_calls == at_start && at_start > before && m.ended_length == answers && m.steps_recorded > 0,
             std::to_string(at_start - before) + " allocations and captures in " +
                 std::to_string(static_cast<int64_t>(1e3 * ready)) + " ms at start, " +
                 std::to_string(set_up_calls - at_start) + " while serving, " + std::to_string(m.steps_recorded) +
                 " of " + std::to_string(m.steps) + " steps from graphs, free memory changed by " +
                 std::to_string(static_cast<int64_t>(free_after) - static_cast<int64_t>(free_before)) + " bytes");
}

// Median of a decode step of `sequences` sequences behind `context` tokens, logits on the host and commit asked for.
double step_ms(const Subject& s, int32_t sequences, int32_t context, int64_t max_length, bool record) {
  const auto blocks = static_cast<int32_t>(blocks_for(context + 200));
  Runner runner(s.h.cuda(), s.model,
                {.slots = sequences,
                 .blocks = blocks * sequences,
                 .snapshots = 0,
                 .max_rows = 512,
                 .max_samples = sequences,
                 .max_length = max_length,
                 .drafts = false,
                 .record = record});
  std::vector<std::vector<int32_t>> tables;
  for (int32_t i = 0; i < sequences; ++i) tables.push_back(testing::iota_blocks(i * blocks, blocks));
  const auto step = [&](int32_t first, int32_t count, int32_t at, const std::vector<int32_t>& tokens) {
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
    runner.start(parts, ReplayForm::kAfterLastSource);
    runner.fetch();
    runner.commit(std::vector<int32_t>(parts.size(), static_cast<int32_t>(tokens.size())));
  };
  for (int32_t i = 0; i < sequences; ++i) {
    for (int32_t at = 0; at < context; at += 512) {
      step(i, 1, at, testing::some_tokens(std::min(512, context - at), static_cast<uint32_t>(at + i)));
    }
  }
  std::vector<double> ms;
  for (int32_t n = 0; n < 150; ++n) {
    const double start = seconds();
    step(0, sequences, context + n, {7 + n});
    if (n >= 50) ms.push_back(1e3 * (seconds() - start));
  }
  std::nth_element(ms.begin(), ms.begin() + 50, ms.end());
  return ms[50];
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
  if (h.wants("graph serving")) check_serving(s);
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
