// `mdi generate`: one prompt in, its continuation out.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "core/error.h"
#include "engine/generator.h"
#include "engine/load.h"
#include "engine/stop_strings.h"
#include "text/detokenizer.h"

namespace mdi {

namespace {

struct Options {
  std::string model, prompt, draft = "none", device = "cpu";
  std::vector<int32_t> prompt_ids, stop_ids;
  std::vector<std::string> stop, images;
  int32_t max_tokens = 64, chunk = 512, threads = 0;
  SamplingParams sampling{.temperature = 0.0f};
  bool ignore_eos = false, json = false;
  ReplaySettings replay;
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

// What is shown of a token: its id, or the text that it completes up to a stop string.
struct Output {
  bool ids = true, silent = false, first = true;
  std::unique_ptr<Detokenizer> detokenizer;
  StopStrings stops;
  std::string text;

  explicit Output(StopStrings s) : stops(std::move(s)) {}

  void show(const std::string& part) {
    text += part;
    if (silent) return;
    std::fwrite(part.data(), 1, part.size(), stdout);
    std::fflush(stdout);
  }
  // False at a stop string.
  bool token(int32_t id) {
    if (ids) {
      show((first ? "" : ",") + std::to_string(id));
      first = false;
    }
    if (!detokenizer) return true;
    const std::string part = stops.push(detokenizer->push(id));
    if (!ids) show(part);
    return !stops.stopped();
  }
  void finish() {
    if (ids) return;
    if (!stops.stopped()) show(stops.push(detokenizer->finish()));
    if (!stops.stopped()) show(stops.finish());
  }
};

void print_json(const GenerateRequest& request, const GenerateResult& r, const Output& output) {
  nlohmann::ordered_json out;
  out["prompt_ids"] = request.prompt;
  out["ids"] = r.tokens;
  if (!output.ids) out["text"] = output.text;
  out["finish_reason"] = finish_reason_name(r.finish);
  out["prompt_tokens"] = request.prompt.size();
  out["completion_tokens"] = r.tokens.size();
  out["prefill_seconds"] = r.prefill_seconds;
  out["decode_seconds"] = r.decode_seconds;
  out["decode_steps"] = r.decode_steps;
  if (request.draft) {
    out["draft_proposed"] = r.proposed;
    out["draft_accepted"] = r.accepted;
  }
  std::printf("%s\n", out.dump().c_str());
}

void print_rates(const GenerateRequest& request, const GenerateResult& r) {
  std::fprintf(stderr, "%zu prompt tokens in %.3f s (%.1f tok/s), %zu new tokens", request.prompt.size(),
               r.prefill_seconds, static_cast<double>(request.prompt.size()) / r.prefill_seconds, r.tokens.size());
  if (r.decode_steps > 0) {
    std::fprintf(stderr, " (%.1f tok/s)", static_cast<double>(r.tokens.size() - 1) / r.decode_seconds);
  }
  std::fprintf(stderr, ", %s\n", finish_reason_name(r.finish));
  if (!request.draft) return;
  std::fprintf(stderr, "drafts: %.2f tokens a step; accepted by place:",
               static_cast<double>(r.tokens.size() - 1) / static_cast<double>(std::max<int64_t>(r.decode_steps, 1)));
  for (size_t i = 0; i < r.proposed.size(); ++i) {
    std::fprintf(stderr, " %lld/%lld", static_cast<long long>(r.accepted[i]), static_cast<long long>(r.proposed[i]));
  }
  std::fprintf(stderr, "\n");
}

// Puts the images into the prompt: each placeholder becomes a span, with the rows that it is embedded as. A text that
// has no placeholders shows its images first.
void add_images(const Options& o, LoadedModel& loaded, GenerateRequest& request) {
  const ModelConfig& config = loaded.model.config();
  const std::vector<PreparedImage> images = load_images(config, o.images);
  if (!o.prompt.empty()) {
    request.prompt = put_placeholders(config, std::move(request.prompt), static_cast<int64_t>(images.size()));
  }
  ImagePrompt prompt = expand_placeholders(config, request.prompt, images);
  request.images = encode_images(*loaded.context, loaded.model, prompt, images);
  request.prompt = std::move(prompt.tokens);
}

void generate(const Options& o) {
  check_sampling(o.sampling, "generate");
  LoadedModel loaded = load_for(o.device, o.model, o.threads);
  GenerateRequest request{.prompt = o.prompt_ids,
                          .max_tokens = o.max_tokens,
                          .sampling = o.sampling,
                          .stop_ids = o.stop_ids,
                          .draft = o.draft == "dspark"};
  Output output(StopStrings(o.stop));
  output.ids = o.prompt.empty();
  output.silent = o.json;
  if (!o.prompt.empty()) request.prompt = need_tokenizer(loaded, "--prompt").encode(o.prompt);
  if (!o.prompt.empty() || !o.stop.empty()) {
    output.detokenizer = std::make_unique<Detokenizer>(need_tokenizer(loaded, "--stop"), true);
  }
  add_images(o, loaded, request);
  for (const int32_t id : o.stop_ids) {
    const int64_t vocabulary = loaded.model.config().vocab_size;
    if (id >= 0 && id < vocabulary) continue;
    throw Error("--stop-ids", "expected 0 to " + std::to_string(vocabulary - 1) + ", found " + std::to_string(id));
  }
  if (!o.ignore_eos) request.stop_ids.push_back(loaded.model.config().eos_token_id);

  Generator generator(*loaded.context, loaded.model, static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
                      o.chunk, o.replay);
  Progress progress;
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [&](int64_t done, int64_t total) {
    progress.prefill(done, total);
    return true;
  };
  callbacks.on_token = [&](int32_t token) { return output.token(token); };
  const GenerateResult result = generator.run(request, callbacks);
  output.finish();
  if (o.json) {
    print_json(request, result, output);
  } else {
    std::printf("\n");
    print_rates(request, result);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  command->add_option("--model", o->model, "Folder of the checkpoint")->required();
  auto* prompt = command->add_option_group("prompt", "The prompt, one of");
  prompt->add_option("--prompt", o->prompt, "Text, encoded as it is: no token is added around it");
  prompt->add_option("--prompt-ids", o->prompt_ids, "Token ids: 1,2,3")->delimiter(',');
  prompt->require_option(1);
  command
      ->add_option("--image", o->images,
                   "A JPEG, PNG or WebP file for the next placeholder; may be given several times. A text without any "
                   "shows its images first")
      ->allow_extra_args(false);
  command->add_option("--max-tokens", o->max_tokens, "Most tokens to generate")->check(whole(1))->capture_default_str();
  command->add_option("--temperature", o->sampling.temperature, "0: the most likely token")->capture_default_str();
  command->add_option("--top-k", o->sampling.top_k, "Only the K most likely tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", o->sampling.top_p, "Only the most likely tokens that reach P")->capture_default_str();
  command->add_option("--min-p", o->sampling.min_p, "Only tokens within P of the most likely")->capture_default_str();
  command->add_option("--seed", o->sampling.seed, "Same seed, same tokens")->capture_default_str();
  command->add_option("--stop", o->stop, "End before this text; may be given several times")
      ->check(some_text())
      ->allow_extra_args(false);
  command->add_option("--stop-ids", o->stop_ids, "End after one of these token ids")->delimiter(',');
  command->add_flag("--ignore-eos", o->ignore_eos, "Do not end at the model's end token");
  command->add_option("--draft", o->draft, "Propose blocks of tokens with the draft layers and verify them")
      ->check(CLI::IsMember({"none", "dspark"}))
      ->capture_default_str();
  command->add_option("--chunk", o->chunk, "Prompt tokens a step")->check(whole(1))->capture_default_str();
  add_replay(*command, o->replay);
  command->add_option("--device", o->device, "Where the model runs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", o->threads, "CPU threads; 0: one per core")
      ->check(thread_count())
      ->capture_default_str();
  command->add_flag("--json", o->json, "Print one JSON object");
  command->callback([o] { generate(*o); });
}

}  // namespace mdi
