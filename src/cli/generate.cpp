// `mdi generate`: one prompt in, its continuation out.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "engine/generator.h"
#include "engine/load.h"

namespace mdi {

namespace {

struct Options {
  std::string model;
  std::vector<int32_t> prompt_ids, stop_ids;
  int32_t max_tokens = 64, chunk = 512, threads = 0;
  SamplingParams sampling{.temperature = 0.0f};
  bool ignore_eos = false, json = false;
};

// A line on the terminal that is written over while work goes on; nothing when stderr is not a terminal.
struct Progress {
  bool shown = false;
  void prefill(int64_t done, int64_t total) {
    if (isatty(STDERR_FILENO) == 0 || (done == total && !shown)) return;
    std::fprintf(stderr, "\rprefill %lld of %lld tokens", static_cast<long long>(done), static_cast<long long>(total));
    shown = true;
    if (done == total) std::fprintf(stderr, "\r\033[K");
  }
};

void print_json(const Options& o, const GenerateResult& r) {
  nlohmann::ordered_json out;
  out["prompt_ids"] = o.prompt_ids;
  out["ids"] = r.tokens;
  out["finish_reason"] = finish_reason_name(r.finish);
  out["prompt_tokens"] = o.prompt_ids.size();
  out["completion_tokens"] = r.tokens.size();
  out["prefill_seconds"] = r.prefill_seconds;
  out["decode_seconds"] = r.decode_seconds;
  std::printf("%s\n", out.dump().c_str());
}

void print_rates(const Options& o, const GenerateResult& r) {
  std::fprintf(stderr, "%zu prompt tokens in %.3f s (%.1f tok/s), %zu new tokens", o.prompt_ids.size(),
               r.prefill_seconds, static_cast<double>(o.prompt_ids.size()) / r.prefill_seconds, r.tokens.size());
  if (r.decode_steps > 0) {
    std::fprintf(stderr, " (%.1f tok/s)", static_cast<double>(r.decode_steps) / r.decode_seconds);
  }
  std::fprintf(stderr, ", %s\n", finish_reason_name(r.finish));
}

void generate(const Options& o) {
  check_sampling(o.sampling, "generate");
  LoadedModel loaded = load_for_cpu(o.model, o.threads);
  GenerateRequest request{
      .prompt = o.prompt_ids, .max_tokens = o.max_tokens, .sampling = o.sampling, .stop_ids = o.stop_ids};
  if (!o.ignore_eos) request.stop_ids.push_back(loaded.model.config().eos_token_id);

  Generator generator(*loaded.context, loaded.model, static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
                      o.chunk);
  Progress progress;
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [&](int64_t done, int64_t total) {
    progress.prefill(done, total);
    return true;
  };
  if (!o.json) {
    callbacks.on_token = [first = true](int32_t token) mutable {
      std::printf(first ? "%d" : ",%d", token);
      std::fflush(stdout);
      first = false;
      return true;
    };
  }
  const GenerateResult result = generator.run(request, callbacks);
  if (o.json) {
    print_json(o, result);
  } else {
    std::printf("\n");
    print_rates(o, result);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  command->add_option("--model", o->model, "Folder of the checkpoint")->required();
  command->add_option("--prompt-ids", o->prompt_ids, "The prompt as token ids: 1,2,3")->delimiter(',')->required();
  command->add_option("--max-tokens", o->max_tokens, "Most tokens to generate")->capture_default_str();
  command->add_option("--temperature", o->sampling.temperature, "0: the most likely token")->capture_default_str();
  command->add_option("--top-k", o->sampling.top_k, "Only the K most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", o->sampling.top_p, "Only the most likely tokens that reach P")->capture_default_str();
  command->add_option("--min-p", o->sampling.min_p, "Only tokens within P of the most likely")->capture_default_str();
  command->add_option("--seed", o->sampling.seed, "Same seed, same tokens")->capture_default_str();
  command->add_option("--stop-ids", o->stop_ids, "End after one of these token ids")->delimiter(',');
  command->add_flag("--ignore-eos", o->ignore_eos, "Do not end at the model's end token");
  command->add_option("--chunk", o->chunk, "Prompt tokens a step")->capture_default_str();
  command->add_option("--threads", o->threads, "CPU threads; 0: one per core")->capture_default_str();
  command->add_flag("--json", o->json, "Print one JSON object");
  command->callback([o] { generate(*o); });
}

}  // namespace mdi
