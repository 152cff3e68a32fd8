// mdi check: compares this build with stored expectations.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/ranges.h"
#include "core/error.h"
#include "engine/golden/folder.h"
#include "engine/golden/report.h"

namespace mdi {

namespace {

struct Arguments {
  std::string dir, device = "cpu";
  std::vector<std::string> only;
  int threads = 1;  // golden checkpoints are so small that a second thread costs more than it does
  bool verbose = false, json = false;
};

void run(const Arguments& a) {
  const auto start = std::chrono::steady_clock::now();
  golden::Report report;
  report.only = a.only;
  if (!a.json) {
    std::printf("%-56s %9s %9s  measured, tolerance, verdict\n", "quantity", "largest", "mean");
    report.on_quantity = [&](const golden::Quantity& q) {
      std::printf("%s\n", golden::report_line(q, a.verbose).c_str());
      std::fflush(stdout);
    };
  }
  golden::check_folder(a.dir, a.threads, report, a.device);
  if (a.json) {
    std::printf("%s\n", golden::report_json(report).c_str());
  } else {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%s: %s (%.1f s)\n", a.dir.c_str(), golden::report_summary(report).c_str(), seconds);
  }
  if (report.passed()) return;
  const int64_t failed = report.count(golden::Verdict::kFail);
  throw Error(a.dir, failed > 0 ? std::to_string(failed) + " quantities are not as expected" : "nothing was checked");
}

}  // namespace

void add_check(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("check", "Compare this build with a folder of stored inputs and expected outputs");
  cmd->add_option("DIR", a->dir, "Operator cases and checkpoints with expected/, or one checkpoint with expected/")
      ->required();
  cmd->add_option("--only", a->only, "Only quantities whose name begins so, from its start or behind a '/'");
  cmd->add_option("--device", a->device, "Where the checkpoints run; off the CPU they are compared with the CPU too")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  cmd->add_option("--threads", a->threads, "0: one per core")->check(thread_count())->capture_default_str();
  cmd->add_flag("--verbose", a->verbose, "Say where the largest difference lies");
  cmd->add_flag("--json", a->json, "One JSON object instead of lines");
  cmd->callback([a] { run(*a); });
}

}  // namespace mdi
