// mdi synth: writes a synthetic checkpoint.
#include "checkpoint/synth.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "checkpoint/synth_presets.h"
#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/usage.h"

namespace mdi {

namespace {

struct Arguments {
  std::string dir, preset = "tiny", config_file;
  ShapeOverrides shape;
  SynthOptions options;
  bool trained = false, plain = false, fill = false, quiet = false;
};

void run(Arguments& a) {
  ModelConfig config = a.config_file.empty() ? synth_preset(a.preset) : load_config(a.config_file);
  usage_checked([&] { apply_overrides(config, a.shape); });
  const bool preset = a.config_file.empty();
  a.options.traits.trained = a.trained || (preset && a.preset == "slice" && !a.plain);
  a.options.holes = a.options.holes || (preset && a.preset == "released" && !a.fill);
  uint64_t shown = 0;  // a line for each 256 MB
  if (!a.quiet && isatty(STDERR_FILENO) != 0) {
    a.options.progress = [&shown](uint64_t done, uint64_t total) {
      if (done - shown < (uint64_t{1} << 28) && done < total) return;
      shown = done;
      std::fprintf(stderr, "\r%.1f of %.1f GB", static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9);
      if (done == total) std::fputc('\n', stderr);
    };
  }
  const auto start = std::chrono::steady_clock::now();
  const SynthResult r = write_synthetic_checkpoint(a.dir, config, a.options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s: %zu tensors in %zu files, %llu bytes (%s), seed %llu, %.2f s\n", a.dir.c_str(), r.tensors, r.files,
              static_cast<unsigned long long>(r.bytes),
              a.options.holes            ? "headers only, the values are holes"
              : a.options.traits.trained ? "values like trained ones"
                                         : "plain random values",
              static_cast<unsigned long long>(a.options.traits.seed), seconds);
}

}  // namespace

void add_synth(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("synth", "Write a synthetic checkpoint in the released format");
  cmd->footer(
      "With a vocabulary of 268 to 65536 tokens the folder has a tokenizer of single bytes; without one 'mdi serve', "
      "'mdi chat' and 'mdi generate --prompt' need a tokenizer.json put there.");
  cmd->add_option("DIR", a->dir, "The folder to make; it appears whole or not at all")->required();
  auto* preset =
      cmd->add_option("--preset", a->preset, "Shape: tiny, tiny-vision, slice (released widths, few layers), released")
          ->check(CLI::IsMember({"tiny", "tiny-vision", "slice", "released"}))
          ->capture_default_str();
  cmd->add_option("--config", a->config_file, "Shape from a config.json instead")
      ->check(CLI::ExistingPath)
      ->excludes(preset);
  cmd->add_option("--seed", a->options.traits.seed, "The same seed gives the same bytes")->capture_default_str();
  cmd->add_option("--layers", a->shape.layers, "Backbone layers: the first ones, or more of the last kind");
  cmd->add_option("--draft-layers", a->shape.draft_layers, "Draft layers; 0 for none");
  cmd->add_option("--experts", a->shape.experts, "Routed experts of a layer");
  cmd->add_option("--draft-experts", a->shape.draft_experts, "Routed experts of a draft layer");
  cmd->add_option("--vocab", a->shape.vocab, "Tokens");
  cmd->add_option("--engram-vocab", a->shape.engram_vocab, "Rows of one engram column (its primes start there)");
  cmd->add_flag("--no-vision", a->shape.no_vision, "Leave the vision tower out");
  auto* trained =
      cmd->add_flag("--trained", a->trained,
                    "Values with what trained weights have: huge and tiny channels, dead rows, zero blocks, "
                    "wide scales, skewed routing (default for slice)");
  cmd->add_flag("--plain", a->plain, "Plain random values (default otherwise)")->excludes(trained);
  auto* holes = cmd->add_flag("--holes", a->options.holes, "Real headers over sparse files (default for released)");
  cmd->add_flag("--fill", a->fill, "Real values even at the released size: 510 GB")->excludes(holes);
  cmd->add_flag("--force", a->options.force, "Replace a checkpoint that is already in DIR");
  cmd->add_option("--threads", a->options.threads, "0: one per core")->check(thread_count())->capture_default_str();
  cmd->add_flag("--quiet", a->quiet, "No progress");
  cmd->callback([a] { run(*a); });
}

}  // namespace mdi
