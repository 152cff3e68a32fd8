// mdi inspect: what a checkpoint is, what it holds, and what it needs.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/byte_size.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/memory_plan.h"
#include "cli/commands.h"
#include "cli/inspect_report.h"
#include "cli/ranges.h"
#include "cli/usage.h"

namespace mdi {

namespace {

struct Arguments {
  std::string path, device_memory, host_memory, reserve, engram;
  PlanOptions plan;
  int64_t sequences = 0;
  bool json = false, no_drafts = false, no_vision = false;
};

uint64_t memory_of_this_machine() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}

PlanOptions plan_options(const Arguments& a) {
  PlanOptions o = a.plan;
  if (!a.device_memory.empty()) o.device_memory = parse_size(a.device_memory, "--device-memory");
  o.host_memory = a.host_memory.empty() ? memory_of_this_machine() : parse_size(a.host_memory, "--host-memory");
  if (!a.reserve.empty()) o.reserve = parse_size(a.reserve, "--reserve");
  if (a.sequences != 0) o.sequences = a.sequences;
  for (const Placement p : {Placement::kDevice, Placement::kHost, Placement::kFile}) {
    if (a.engram == placement_name(p)) o.engram = p;
  }
  o.drafts = !a.no_drafts;
  o.vision = !a.no_vision;
  return o;
}

void run(const Arguments& a) {
  Inspection i;
  i.path = a.path;
  const PlanOptions options = usage_checked([&a] { return plan_options(a); });
  if (std::filesystem::is_directory(a.path)) {
    const Checkpoint checkpoint = Checkpoint::open(a.path);
    i.config = checkpoint.config();
    i.parts = sum_parts(checkpoint.tensors());
    i.has_files = true;
  } else {
    i.config = load_config(a.path);
    i.parts = sum_parts(inventory(i.config));
  }
  i.plan = usage_checked([&] { return plan_memory(i.config, options); });
  const std::string text = a.json ? inspection_json(i) : inspection_text(i);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("inspect", "Show a checkpoint's model, its tensors by part, and the memory plan");
  cmd->add_option("DIR", a->path, "A checkpoint's folder, or a config.json alone")
      ->required()
      ->check(CLI::ExistingPath);
  cmd->add_flag("--json", a->json, "One JSON object instead of tables");
  const std::string plan = "Memory plan";
  cmd->add_option("--ep", a->plan.ep, "Ranks that share experts and engram tables")->capture_default_str()->group(plan);
  cmd->add_option("--dp", a->plan.dp, "Of these, groups with sequences of their own (default: as --ep)")->group(plan);
  cmd->add_option("--device-memory", a->device_memory,
                  "Of one device, such as 141GB or 80GiB; without it nothing is compared")
      ->group(plan);
  cmd->add_option("--host-memory", a->host_memory, "For engram tables (default: this machine's)")->group(plan);
  cmd->add_option("--sequences", a->sequences, "Over all ranks (default: as many as fit)")
      ->check(whole(1))
      ->group(plan);
  cmd->add_option("--context", a->plan.context, "Tokens of a sequence (default: 131072, or the model's limit)")
      ->check(whole(1))
      ->group(plan);
  cmd->add_option("--step-rows", a->plan.step_rows, "New tokens a step and rank")->capture_default_str()->group(plan);
  cmd->add_option("--engram", a->engram, "Where the tables are (default: the best that fits)")
      ->check(CLI::IsMember({"device", "host", "file"}))
      ->group(plan);
  cmd->add_option("--snapshots", a->plan.snapshots, "Of sequences' slots in host memory, for the prefix cache")
      ->capture_default_str()
      ->group(plan);
  cmd->add_flag("--no-drafts", a->no_drafts, "Without the draft layers")->group(plan);
  cmd->add_flag("--no-vision", a->no_vision, "Without the vision tower")->group(plan);
  cmd->add_option("--reserve", a->reserve, "Allowance for driver, libraries and graphs (default: 1.5GB)")->group(plan);
  cmd->callback([a] { run(*a); });
}

}  // namespace mdi
