// The whole engine on the GPU: 64 mixed requests get the same tokens alone, batched, chunked in three ways, preempted,
// with prefix hits, forked and with drafts, chosen on the device and on the host, and while steps are measured by
// stage; serving allocates nothing; a request costs what its own length costs. The tiny text model; where MDI_SLICE
// names a checkpoint (`mdi synth DIR --preset slice`), that one too, in fewer ways.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "../engine/mixed_requests.h"
#include "checkpoint/synth.h"
#include "checkpoint/synth_presets.h"
#include "engine/engine_plan.h"
#include "find_golden.h"
#include "harness.h"
#include "model/place.h"

namespace mdi::check {

namespace {

using testing::forked_samples;
using testing::mixed_alone;
using testing::mixed_variants;
using testing::MixedRun;
using testing::MixedVariant;
using testing::run_mixed;

// The backend's operations, with its allocations counted.
int64_t allocations = 0;
const Ops* plain_ops = nullptr;

const Ops& counting_ops(const Ops& plain) {
  plain_ops = &plain;
  static Ops made;
  made = plain;
  made.allocate = [](Context& c, int64_t bytes) {
    ++allocations;
    return plain_ops->allocate(c, bytes);
  };
  made.allocate_host = [](Context& c, int64_t bytes) {
    ++allocations;
    return plain_ops->allocate_host(c, bytes);
  };
  return made;
}

struct Subject {
  Harness& h;
  std::string name;
  const Model& model;
};

void check_variant(const Subject& s, const MixedVariant& v, const std::vector<std::vector<int32_t>>& expected) {
  const auto start = std::chrono::steady_clock::now();
  const MixedRun run = run_mixed(s.h.cuda(), s.model, v, expected);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const EngineMetrics& m = run.metrics;
  std::string note = std::to_string(run.wrong) + " differ, " + std::to_string(m.steps) + " steps, " +
                     std::to_string(m.steps_recorded) + " from graphs, " +
                     std::to_string(static_cast<int64_t>(1e3 * seconds)) + " ms, " + std::to_string(m.preemptions) +
                     " preemptions, " + std::to_string(m.hits) + " hits";
  if (!run.first_wrong.empty()) note += ", first: " + run.first_wrong;
  bool as_asked = m.steps_recorded > 0;
  const char* how = "";
  if (!v.options.record_steps) {
    as_asked = m.steps_recorded == 0;
    how = " without graphs";
  }
  if (v.options.measure_every == 1) {
    as_asked = m.decode_stages.steps > 0 && m.prefill_stages.steps + m.decode_stages.steps > m.steps / 10;
    how = " measured";
  }
  s.h.expect("engine " + v.name + how, s.name, run.wrong == 0 && run.clean && as_asked, note);
}

void check_variants(const Subject& s, bool all) {
  const auto sampled = mixed_alone(s.h.cuda(), s.model, false);
  const auto greedy = mixed_alone(s.h.cuda(), s.model, true);
  for (const MixedVariant& v : mixed_variants()) {
    const bool few = v.name == "Batched" || v.name == "Preempted" || v.name == "DraftsPreemptedWithHits";
    if (!(all || few) || (v.options.draft && s.model.draft_stages() == 0)) continue;
    check_variant(s, v, v.greedy ? greedy : sampled);
    if (!few) continue;
    MixedVariant launched = v;  // operation by operation instead of from graphs
    launched.options.record_steps = false;
    check_variant(s, launched, v.greedy ? greedy : sampled);
    MixedVariant measured = v;
    measured.options.measure_every = 1;
    check_variant(s, measured, v.greedy ? greedy : sampled);
  }
}

void check_forks(const Subject& s) {
  for (const float temperature : {0.0f, 1.0f}) {
    if (s.h.small() && temperature == 0.0f) continue;
    const SamplingParams sampling{.temperature = temperature, .seed = 4};
    const auto roomy = forked_samples(s.h.cuda(), s.model, 8, 0, sampling);
    const bool same = forked_samples(s.h.cuda(), s.model, 2, 0, sampling) == roomy &&
                      (s.h.small() || (forked_samples(s.h.cuda(), s.model, 6, 6, sampling) == roomy &&
                                       forked_samples(s.h.cuda(), s.model, 1, 6, sampling) == roomy));
    s.h.expect("engine forks", s.name + (temperature == 0.0f ? ", greedy" : ", sampled"), same);
  }
}

void check_allocations(const Subject& s) {
  Context& context = s.h.cuda();
  const Ops* before = context.ops;
  context.ops = &counting_ops(*before);
  {
    const int requests = s.h.small() ? 5 : 20;
    EngineOptions o;
    o.slots = s.h.small() ? 2 : 6;
    o.max_length = testing::kMixedLength;
    o.snapshot_min_tokens = 1;
    o.draft_always = true;
    o.preempt_every = 9;
    Engine engine(context, s.model, nullptr, o);
    const int64_t at_start = allocations;
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
    const EngineMetrics m = engine.metrics();
    s.h.expect("engine allocates nothing", s.name, allocations == at_start && m.ended_length == answers,
               std::to_string(at_start) + " allocations at start, " + std::to_string(allocations - at_start) +
                   " while serving");
    std::printf("%s", describe(m).c_str());
  }
  context.ops = before;
}

// What an engine takes of the GPU's memory, against its plan.
void check_plan(const Subject& s) {
  EngineOptions o;
  o.slots = 16;
  o.max_length = 4096;
  o.snapshots = 8;
  const EngineBytes planned = dry_run(s.model, s.h.cuda(), o);
  size_t before = 0, after = 0, total = 0;
  MDI_CUDA(cudaMemGetInfo(&before, &total));
  const Engine engine(s.h.cuda(), s.model, nullptr, o);
  MDI_CUDA(cudaMemGetInfo(&after, &total));
  const auto taken = static_cast<int64_t>(before) - static_cast<int64_t>(after);
  s.h.expect("engine plan", s.name, taken <= planned.device,
             std::to_string(taken) + " bytes taken, " + std::to_string(planned.device) + " planned, of them " +
                 std::to_string(planned.graphs) + " for graphs and the driver");
}

// Tokens a second of `sequences` requests that decode at once, behind a round to warm up.
double decoding_rate(Engine& engine, int32_t sequences, const SamplingParams& sampling) {
  double rate = 0;
  for (const int32_t tokens : {6, 60}) {
    for (int32_t i = 0; i < sequences; ++i) {
      Request r;
      r.prompt = testing::some_tokens(8, static_cast<uint32_t>(i));
      r.max_tokens = tokens;
      r.sampling = sampling;
      r.sampling.seed = static_cast<uint64_t>(i);
      engine.submit(std::move(r));
    }
    const auto start = std::chrono::steady_clock::now();
    engine.run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rate = tokens * sequences / seconds;
  }
  return rate;
}

// With tokens chosen on the host and on the device.
void time_engine(const Subject& s) {
  const std::pair<const char*, SamplingParams> kinds[] = {
      {"greedy", {.temperature = 0}},
      {"sampled", {.temperature = 1.0f}},
      {"top-k and top-p", {.temperature = 1.0f, .top_k = 50, .top_p = 0.95f}}};
  for (const int32_t sequences : {1, 16, 64}) {
    double rates[2][std::size(kinds)] = {};
    for (const bool device : {false, true}) {
      EngineOptions o;
      o.slots = sequences;
      o.max_length = 256;
      o.snapshots = 0;
      o.draft = false;
      o.device_sampling = device;
      Engine engine(s.h.cuda(), s.model, nullptr, o);
      for (size_t k = 0; k < std::size(kinds); ++k) {
        rates[device ? 1 : 0][k] = decoding_rate(engine, sequences, kinds[k].second);
      }
    }
    for (size_t k = 0; k < std::size(kinds); ++k) {
      std::printf("TIME decoding, %s, %d sequences, %s: %.0f tokens/s chosen on the host, %.0f on the device\n",
                  s.name.c_str(), sequences, kinds[k].first, rates[0][k], rates[1][k]);
    }
  }
}

// The tiny model with the released vocabulary: steps of a few milliseconds, and all that choosing costs.
void time_wide_vocabulary(Harness& h) {
  ModelConfig config = synth_preset("tiny");
  apply_overrides(config, {.vocab = 129280});
  const auto dir = std::filesystem::temp_directory_path() / ("mdi-wide-" + std::to_string(getpid()));
  SynthOptions options;
  options.force = true;
  write_synthetic_checkpoint(dir, config, options);
  Model model = testing::load_checkpoint(dir);
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  time_engine({h, "vocabulary of 129,280", model});
  std::filesystem::remove_all(dir);
}

void check_placed(Harness& h, const std::string& name, Model model, bool all) {
  const DeviceBuffer placed = place_weights(h.cuda(), model);
  const Subject s{h, name, model};
  if (h.wants("engine")) {
    // A sanitizer takes memory of its own, and time for each of the variants' thousands of steps.
    if (!h.small()) {
      check_plan(s);
      check_variants(s, all);
    }
    check_forks(s);
    check_allocations(s);
  }
}

int run(int argc, char** argv) {
  Harness h("engine", argc, argv, int64_t{2} << 30);
  find_golden();
  check_placed(h, "tiny-text", testing::load_tiny_model(), true);
  const char* wide = std::getenv("MDI_SLICE");
  if (wide != nullptr && !h.small()) check_placed(h, "slice", testing::load_checkpoint(wide), false);
  if (h.timing()) time_wide_vocabulary(h);
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
