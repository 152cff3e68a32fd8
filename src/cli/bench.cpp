// mdi bench: what a rank's step costs on this GPU, whole and by stage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "cli/usage.h"
#include "engine/bench/report.h"

namespace mdi {

namespace {

struct Arguments {
  bench::StepOptions options;
  std::string routing = "random";
  bool json = false, no_check = false;
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

bench::StepOptions checked(const Arguments& a) {
  bench::StepOptions o = a.options;
  o.rank.routing = usage_checked([&a] { return bench::routing_from_name(a.routing); });
  o.check = !a.no_check;
  return o;
}

void add_common(CLI::App& cmd, Arguments& a) {
  cmd.add_option("--routing", a.routing, "How the tokens of all ranks choose experts")
      ->check(CLI::IsMember({"random", "balanced", "skewed"}))
      ->capture_default_str();
  cmd.add_option("--runs", a.options.runs, "Runs that are timed")->check(whole(1, 1000))->capture_default_str();
  cmd.add_option("--warm", a.options.warm_seconds, "Seconds of the same load before")
      ->check(number(0.0, 600.0, "0 to 600"))
      ->capture_default_str();
  cmd.add_option("--link", a.options.link_gbs, "GB/s that a rank receives from the others, for the wire's time")
      ->check(above_zero())
      ->capture_default_str();
  cmd.add_option("--seed", a.options.rank.seed, "Of the routing")->capture_default_str();
  cmd.add_flag("--json", a.json, "One JSON object instead of tables");
}

void add_step(CLI::App& bench) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = bench.add_subcommand("step", "A prefill step of one of four ranks: exact, and with bounded replay");
  cmd->add_option("--tokens", a->options.rank.rows, "New tokens")->check(whole(64, 16384))->capture_default_str();
  cmd->add_option("--context", a->options.rank.context, "Tokens of the sequence, the new ones included")
      ->check(whole(256, 1048576))
      ->capture_default_str();
  cmd->add_flag("--no-check", a->no_check, "Without the comparison with the CPU backend");
  add_common(*cmd, *a);
  cmd->callback([a] {
    const bench::StepOptions options = checked(*a);
    const auto& rank = options.rank;
    if (rank.rows > rank.context || rank.rows % 2 != 0 || rank.context % 2 != 0) {
      throw CLI::ValidationError("--tokens and --context: expected even numbers, and no more new tokens than context");
    }
    const bench::BenchReport report = bench::bench_step(options);
    print(a->json ? bench::report_json(report) : bench::report_text(report));
    if (!bench::all_passed(report.checks)) throw Error("bench step", "the step differs from the CPU backend");
  });
}

void add_decode(CLI::App& bench) {
  auto a = std::make_shared<Arguments>();
  a->options.rank.sequences = 64;
  CLI::App* cmd = bench.add_subcommand("decode", "A decode step: one new token of each sequence");
  cmd->add_option("--batch", a->options.rank.sequences, "Sequences of this rank")
      ->check(whole(1, 1024))
      ->capture_default_str();
  cmd->add_option("--context", a->options.rank.context, "Tokens of each, the new one included")
      ->check(whole(256, 1048576))
      ->capture_default_str();
  add_common(*cmd, *a);
  cmd->callback([a] {
    bench::StepOptions options = checked(*a);
    options.rank.rows = options.rank.sequences;
    const bench::BenchReport report = bench::bench_decode(options);
    print(a->json ? bench::report_json(report) : bench::report_text(report));
  });
}

void add_kernels(CLI::App& bench) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = bench.add_subcommand("kernels", "Each operation of a step alone, for one layer of every kind");
  cmd->add_option("--tokens", a->options.rank.rows, "New tokens, over all sequences")
      ->check(whole(1, 16384))
      ->capture_default_str();
  cmd->add_option("--sequences", a->options.rank.sequences, "Sequences, with as many new tokens each")
      ->check(whole(1, 1024))
      ->capture_default_str();
  cmd->add_option("--context", a->options.rank.context, "Tokens of each, the new ones included")
      ->check(whole(256, 1048576))
      ->capture_default_str();
  add_common(*cmd, *a);
  cmd->callback([a] {
    const bench::StepOptions options = checked(*a);
    const auto& rank = options.rank;
    if (rank.rows % rank.sequences != 0 || rank.rows / rank.sequences > rank.context) {
      throw CLI::ValidationError("--tokens: expected a multiple of --sequences, and no more of each than --context");
    }
    const bench::KernelReport report = bench::bench_kernels(options);
    print(a->json ? bench::kernels_json(report) : bench::kernels_text(report));
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand(
      "bench", "Measure a rank of the released model on this GPU, with synthetic weights; or serving");
  cmd->require_subcommand(1);
  add_step(*cmd);
  add_decode(*cmd);
  add_kernels(*cmd);
  add_bench_serve(*cmd);
}

}  // namespace mdi
