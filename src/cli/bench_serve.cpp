// mdi bench serve: a trace of requests, or a synthetic one, played to the engine in this process.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "cli/usage.h"
#include "engine/load.h"
#include "engine/serve_bench.h"

namespace mdi {

namespace {

struct Arguments {
  std::string model, trace = "synthetic", device = "cpu", draft = "dspark";
  int32_t threads = 0;
  double tpot_target_ms = 0;
  int64_t max_length = 0;
  bool json = false;
  EngineOptions engine;
  SyntheticTrace synthetic;
  ServeLoad load;
};

void serve(Arguments a) {
  a.engine.tpot_target = a.tpot_target_ms * 1e-3;
  a.engine.draft = a.draft == "dspark";
  const std::vector<TraceRequest> trace =
      a.trace == "synthetic" ? usage_checked([&a] { return synthetic_trace(a.synthetic); }) : read_trace(a.trace);
  if (a.max_length == 0) {
    for (const TraceRequest& r : trace) {
      a.max_length = std::max(a.max_length, int64_t{r.prompt_tokens} + r.output_tokens);
    }
  }
  a.engine.max_length = a.max_length;
  LoadedModel loaded = load_for(a.device, a.model, a.threads);
  Engine engine(*loaded.context, loaded.model, nullptr, a.engine);
  const ServeReport report = play_trace(engine, trace, a.load, loaded.model.config().vocab_size);
  const std::string text = a.json ? serve_json(report) : serve_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void add_engine(CLI::App& cmd, Arguments& a) {
  cmd.add_option("--slots", a.engine.slots, "Sequences that run at once")->check(whole(1))->capture_default_str();
  cmd.add_option("--max-length", a.max_length, "Most tokens of a sequence, answer included; 0: what the trace needs")
      ->check(whole(0))
      ->capture_default_str();
  cmd.add_option("--blocks", a.engine.blocks, "Cache blocks of 128 tokens; 0: enough for all slots")
      ->check(whole(0))
      ->capture_default_str();
  cmd.add_option("--snapshots", a.engine.snapshots, "Host buffers of the prefix cache; 0: none")
      ->check(whole(0))
      ->capture_default_str();
  cmd.add_option("--max-rows", a.engine.max_rows, "Most new tokens of a step")->check(whole(1))->capture_default_str();
  cmd.add_option("--max-queue", a.engine.max_queue, "Requests that may wait")->check(whole(1))->capture_default_str();
  cmd.add_option("--tpot-target-ms", a.tpot_target_ms,
                 "Prefill joins decode steps as far as they are predicted to stay below this; 0: no limit")
      ->check(zero_or_more())
      ->capture_default_str();
  cmd.add_option("--draft", a.draft, "Draft layers, where they pay")
      ->check(CLI::IsMember({"none", "dspark"}))
      ->capture_default_str();
  add_replay(cmd, a.engine.replay);
}

void add_synthetic(CLI::App& cmd, SyntheticTrace& s) {
  cmd.add_option("--requests", s.requests, "Synthetic: how many")->capture_default_str();
  cmd.add_option("--rate", s.rate, "Synthetic: arrivals a second; 0: all at once")->capture_default_str();
  cmd.add_option("--prompt-min", s.prompt_min, "Synthetic: prompt tokens")->capture_default_str();
  cmd.add_option("--prompt-max", s.prompt_max, "")->capture_default_str();
  cmd.add_option("--output-min", s.output_min, "Synthetic: generated tokens")->capture_default_str();
  cmd.add_option("--output-max", s.output_max, "")->capture_default_str();
  cmd.add_option("--shared", s.shared, "Synthetic: share of requests that begin as others do")->capture_default_str();
  cmd.add_option("--groups", s.groups, "Synthetic: how many such beginnings")->capture_default_str();
  cmd.add_option("--prefix-tokens", s.prefix_tokens, "Synthetic: tokens of such a beginning")->capture_default_str();
  cmd.add_option("--seed", s.seed, "Synthetic: same seed, same trace")->capture_default_str();
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = bench.add_subcommand("serve", "Many requests at once: latencies, throughput, hit rate, step times");
  cmd->add_option("--model", a->model, "Folder of the checkpoint")->required();
  cmd->add_option("--trace", a->trace,
                  "'synthetic', or a file with a JSON object a line: arrival (seconds), prompt_tokens, output_tokens, "
                  "and if wanted prefix_group, prefix_tokens, n")
      ->capture_default_str();
  cmd->add_option("--speed", a->load.speed, "Arrivals come this much faster")
      ->check(above_zero())
      ->capture_default_str();
  cmd->add_option("--temperature", a->load.sampling.temperature, "0: the most likely token")->capture_default_str();
  add_engine(*cmd, *a);
  add_synthetic(*cmd, a->synthetic);
  cmd->add_option("--device", a->device, "Where the model runs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  cmd->add_option("--threads", a->threads, "CPU threads; 0: one per core")
      ->check(thread_count())
      ->capture_default_str();
  cmd->add_flag("--json", a->json, "Print one JSON object");
  cmd->callback([a] { serve(*a); });
}

}  // namespace mdi
