// `mdi eval`: how well a model predicts a text, in bits per byte.
#include "engine/eval.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/replay_option.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "engine/load.h"

namespace mdi {

namespace {

struct Options {
  std::string model, file, device = "cpu";
  EvalOptions eval;
  int32_t threads = 0;
  bool json = false;
};

void show_progress(int64_t done, int64_t total) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r%lld of %lld tokens", static_cast<long long>(done), static_cast<long long>(total));
  if (done == total) std::fprintf(stderr, "\r\033[K");
}

void eval(const Options& o) {
  const MappedFile file(o.file);
  LoadedModel loaded = load_for(o.device, o.model, o.threads);
  const ModelConfig& config = loaded.model.config();
  const Tokenizer& tokenizer = need_tokenizer(loaded, "eval");
  std::vector<int32_t> tokens = {config.bos_token_id};
  const std::vector<int32_t> text = tokenizer.encode(file.text());
  tokens.insert(tokens.end(), text.begin(), text.end());
  const std::vector<int32_t> bytes = token_bytes(tokenizer, config.vocab_size);
  const EvalResult r = evaluate(*loaded.context, loaded.model, tokens, bytes, o.eval, show_progress);

  const double perplexity = std::exp2(r.bits / static_cast<double>(r.tokens));
  const double correct = static_cast<double>(r.correct) / static_cast<double>(r.tokens);
  if (o.json) {
    nlohmann::ordered_json out;
    out["file"] = o.file;
    out["tokens"] = r.tokens;
    out["bytes"] = r.bytes;
    out["bits"] = r.bits;
    out["bits_per_byte"] = r.bits_per_byte();
    out["perplexity"] = perplexity;
    out["correct"] = r.correct;
    out["seconds"] = r.seconds;
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  std::printf("%s: %.4f bits per byte (%lld bytes, %lld tokens), perplexity of a token %.2f, %.1f%% foreseen\n",
              o.file.c_str(), r.bits_per_byte(), static_cast<long long>(r.bytes), static_cast<long long>(r.tokens),
              perplexity, 100 * correct);
  std::fprintf(stderr, "%.2f s (%.1f tok/s)\n", r.seconds, static_cast<double>(r.tokens) / r.seconds);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "Bits per byte of a text under a model");
  command->add_option("--model", o->model, "Folder of the checkpoint, with its tokenizer.json")->required();
  command->add_option("file", o->file, "The text, UTF-8")->required();
  command->add_option("--context", o->eval.context, "Tokens of a window; each window starts anew")
      ->capture_default_str();
  command
      ->add_option("--prefix", o->eval.prefix,
                   "Tokens at each window's start that are read and not scored; windows overlap by as many")
      ->capture_default_str();
  add_replay(*command, o->eval.replay);
  command->add_option("--chunk", o->eval.chunk, "Tokens a step")->check(whole(1))->capture_default_str();
  command->add_option("--device", o->device, "Where the model runs")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", o->threads, "CPU threads; 0: one per core")
      ->check(thread_count())
      ->capture_default_str();
  command->add_flag("--json", o->json, "Print one JSON object");
  command->callback([o] { eval(*o); });
}

}  // namespace mdi
