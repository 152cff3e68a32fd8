#include "engine/bench/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "checkpoint/byte_size.h"

namespace mdi::bench {

namespace {

// Prefill tokens a second and GPU of other engines, where only totals are known.
struct Peer {
  const char* name;
  int tokens;
};
constexpr Peer kPeers[] = {{"the first Python engine, as it began", 1085},
                           {"the first Python engine, at its best", 5004},
                           {"the official engine, on a B200", 36171}};

double tokens_per_second(const BenchReport& r, double ms) {
  return ms > 0 ? static_cast<double>(r.options.rank.rows) / ms * 1e3 : 0;
}
double wire_ms(const BenchReport& r, const RunResult& row) { return row.wire_bytes / r.options.link_gbs * 1e-6; }
double floor_sum(const RunResult& row) {
  double sum = 0;
  for (const double ms : row.floor_ms) sum += ms;
  return sum;
}

std::string machine_text(const Machine& m) {
  return fmt::format(
      "{}: {} of memory, {} free, the plan takes {}; weights and caches made in {:.1f} s\n"
      "engram tables of this rank: {} on the device, {} on the host, {} absent\n",
      m.device, size_text(m.memory), size_text(m.free), size_text(m.planned), m.build_seconds,
      size_text(m.engram.device), size_text(m.engram.host), size_text(m.engram.absent));
}

std::string load_text(const BenchReport& r) {
  int64_t rows = 0, most = 0, active = 0;
  for (const ExpertLoad& l : r.load) {
    rows += l.rows;
    active += l.active;
    most = std::max(most, l.most);
  }
  const auto layers = static_cast<int64_t>(std::max<size_t>(1, r.load.size()));
  return fmt::format("experts: {} routing of {} tokens; {} rows a layer for {} of this rank's experts, at most {}\n",
                     routing_name(r.options.rank.routing),
                     with_commas(static_cast<uint64_t>(r.options.rank.rows * kRanks)),
                     with_commas(static_cast<uint64_t>(rows / layers)), active / layers, most);
}

constexpr int kColumn = 31;

std::string line(const std::string& name, const std::vector<std::string>& cells) {
  std::string text = fmt::format("{:<26}", name);
  for (const std::string& cell : cells) text += fmt::format("{:>{}}", cell, kColumn);
  return text + "\n";
}

template <class Cell>
std::string line_of(const BenchReport& r, const char* name, const Cell& cell) {
  std::vector<std::string> cells;
  for (const RunResult& row : r.rows) cells.push_back(cell(row));
  return line(name, cells);
}

std::string stage_cell(double ms, double floor) {
  if (ms <= 0) return "-";
  return floor > 0 ? fmt::format("{:.3f}  {:.3f}  {:>3.0f}%", ms, floor, floor / ms * 100)
                   : fmt::format("{:.3f}  -     -", ms);
}

std::string totals_text(const BenchReport& r) {
  std::string text = line_of(r, "", [](const RunResult& row) { return row.name; });
  text += line_of(r, "step, median", [](const RunResult& row) { return fmt::format("{:.2f} ms", row.median_ms()); });
  text += line_of(r, "  of runs, min to max", [](const RunResult& row) {
    const auto [low, high] = std::minmax_element(row.step_ms.begin(), row.step_ms.end());
    return row.step_ms.empty() ? std::string("-")
                               : fmt::format("{} runs {:.2f} to {:.2f}", row.step_ms.size(), *low, *high);
  });
  text += line_of(r, "tokens/s/GPU", [&](const RunResult& row) {
    return with_commas(static_cast<uint64_t>(tokens_per_second(r, row.median_ms())));
  });
  text +=
      line_of(r, "the wire, by bytes", [&](const RunResult& row) { return fmt::format("{:.2f} ms", wire_ms(r, row)); });
  text += line_of(r, "tokens/s/GPU with it", [&](const RunResult& row) {
    return with_commas(static_cast<uint64_t>(tokens_per_second(r, row.median_ms() + wire_ms(r, row))));
  });
  text += line_of(r, "floor", [](const RunResult& row) {
    return fmt::format("{:.2f} ms, {:.2f} times", floor_sum(row), row.median_ms() / floor_sum(row));
  });
  text += line_of(r, "clock, power", [](const RunResult& row) {
    return row.telemetry.samples == 0 ? std::string("not known")
                                      : fmt::format("{:.0f} MHz, {:.0f} of {:.0f} W", row.telemetry.sm_mhz,
                                                    row.telemetry.watts, row.telemetry.watts_limit);
  });
  text += line_of(r, "launched", [](const RunResult& row) {
    return fmt::format("{}, {:.2f} ms", row.graph ? "one graph" : "one by one", row.host_ms);
  });
  return text;
}

std::string stages_text(const BenchReport& r) {
  std::string text = line_of(r, "stage", [](const RunResult&) { return std::string("ms   floor  reached"); });
  for (size_t i = 0; i < kStages; ++i) {
    const auto stage = static_cast<Stage>(i);
    const bool any =
        std::any_of(r.rows.begin(), r.rows.end(), [&](const RunResult& row) { return row.stage_ms[stage] > 0; });
    if (!any) continue;
    text += line_of(r, stage_name(stage),
                    [&](const RunResult& row) { return stage_cell(row.stage_ms[stage], row.floor_ms[stage]); });
  }
  text +=
      line_of(r, "sum of the stages", [](const RunResult& row) { return stage_cell(row.stages_ms(), floor_sum(row)); });
  text += line_of(r, "  of the step's median",
                  [](const RunResult& row) { return fmt::format("{:.1f}%", row.stages_ms() / row.median_ms() * 100); });
  return text;
}

std::string checks_text(const BenchReport& r) {
  if (r.checks.empty()) return {};
  std::string text = fmt::format(
      "\n64 rows of every stage at full shape against the CPU backend, {:.1f} s\n"
      "{:<30}{:>6}{:>12}{:>8}{:>11}{:>11}\n",
      r.check_seconds, "output", "layer", "elements", "differ", "largest", "mean");
  for (const Checked& c : r.checks) {
    text += fmt::format("{:<30}{:>6}{:>12}{:>8}{:>11.2e}{:>11.2e}  {}", c.what, c.layer, c.elements, c.wrong, c.max,
                        c.mean, c.passed ? "pass" : "FAIL");
    if (!c.passed) text += fmt::format(": got {:.6g}, want {:.6g}", c.got, c.want);
    text += '\n';
  }
  const auto failed = std::count_if(r.checks.begin(), r.checks.end(), [](const Checked& c) { return !c.passed; });
  text += fmt::format("{} comparisons, {} failed\n", r.checks.size(), failed);
  return text;
}

// ---- JSON -----------------------------------------------------------------------------------------------------------
// Names and numbers only, so that no escaping is needed.
std::string machine_json(const Machine& m) {
  return fmt::format(
      R"("device":"{}","memory":{},"free":{},"planned":{},"engram_device":{},"engram_host":{},"engram_absent":{},"build_seconds":{:.3f})",
      m.device, m.memory, m.free, m.planned, m.engram.device, m.engram.host, m.engram.absent, m.build_seconds);
}

std::string telemetry_json(const Telemetry& t) {
  return fmt::format(R"("sm_mhz":{:.0f},"watts":{:.1f},"watts_limit":{:.1f})", t.sm_mhz, t.watts, t.watts_limit);
}

template <class T, class Item>
std::string list_json(const std::vector<T>& items, const Item& item) {
  std::string text = "[";
  for (const T& i : items) {
    if (text.size() > 1) text += ',';
    text += item(i);
  }
  text += ']';
  return text;
}

std::string row_json(const BenchReport& r, const RunResult& row) {
  std::string stages;
  for (size_t i = 0; i < kStages; ++i) {
    const auto stage = static_cast<Stage>(i);
    stages += fmt::format(R"({}"{}":{{"ms":{:.4f},"floor_ms":{:.4f}}})", i == 0 ? "" : ",", stage_name(stage),
                          row.stage_ms[stage], row.floor_ms[stage]);
  }
  return fmt::format(
      R"({{"name":"{}","step_ms":{},"median_ms":{:.4f},"marked_ms":{:.4f},"host_ms":{:.4f},"graph":{},"tokens_per_second":{:.1f},"floor_ms":{:.4f},"wire_bytes":{:.0f},"wire_ms":{:.4f},{},"stages":{{{}}}}})",
      row.name, list_json(row.step_ms, [](double ms) { return fmt::format("{:.4f}", ms); }), row.median_ms(),
      row.marked_ms, row.host_ms, row.graph, tokens_per_second(r, row.median_ms()), floor_sum(row), row.wire_bytes,
      wire_ms(r, row), telemetry_json(row.telemetry), stages);
}

std::string check_json(const Checked& c) {
  return fmt::format(
      R"({{"what":"{}","layer":{},"elements":{},"differ":{},"largest":{:.4g},"mean":{:.4g},"passed":{}}})", c.what,
      c.layer, c.elements, c.wrong, c.max, c.mean, c.passed);
}

}  // namespace

bool all_passed(const std::vector<Checked>& checks) {
  return std::all_of(checks.begin(), checks.end(), [](const Checked& c) { return c.passed; });
}

std::string report_text(const BenchReport& r) {
  const RankOptions& o = r.options.rank;
  std::string text = fmt::format(
      "mdi bench {}: one of {} ranks (experts over {}, sequences of its own), synthetic weights of the released "
      "shapes\n"
      "{} new tokens of {} sequence{} with {} of context each\n",
      r.what, kRanks, kRanks, with_commas(static_cast<uint64_t>(o.rows)), o.sequences, o.sequences == 1 ? "" : "s",
      with_commas(static_cast<uint64_t>(o.context)));
  text += machine_text(r.machine) + load_text(r);
  text += fmt::format(
      "after {:.1f} s of the same load; the wire (fp8 rows in, bf16 sums back) is bytes over {:.0f} GB/s, not in the "
      "step\n\n",
      r.options.warm_seconds, r.options.link_gbs);
  text += totals_text(r) + "\n" + stages_text(r);
  if (r.what == "step") {
    text += "\nprefill tokens/s/GPU of others (their own settings; stages are not known)\n";
    for (const Peer& p : kPeers)
      text += fmt::format("  {:<40}{:>8}\n", p.name, with_commas(static_cast<uint64_t>(p.tokens)));
  }
  return text + checks_text(r);
}

std::string report_json(const BenchReport& r) {
  const RankOptions& o = r.options.rank;
  return fmt::format(
      R"({{"bench":"{}","rows":{},"sequences":{},"context":{},"routing":"{}","link_gbs":{:.1f},{},"runs":{},"check_seconds":{:.2f},"checks":{}}})"
      "\n",
      r.what, o.rows, o.sequences, o.context, routing_name(o.routing), r.options.link_gbs, machine_json(r.machine),
      list_json(r.rows, [&](const RunResult& row) { return row_json(r, row); }), r.check_seconds,
      list_json(r.checks, check_json));
}

std::string kernels_text(const KernelReport& r) {
  const RankOptions& o = r.options.rank;
  std::string text = fmt::format(
      "mdi bench kernels: {} new tokens of {} sequence{} with {} of context each, every operation alone\n{}"
      "clock, power: {:.0f} MHz, {:.0f} W, medians over all of them\n\n{:<20}{:>6}{:>12}{:>12}{:>9}  {}\n",
      with_commas(static_cast<uint64_t>(o.rows)), o.sequences, o.sequences == 1 ? "" : "s",
      with_commas(static_cast<uint64_t>(o.context)), machine_text(r.machine), r.telemetry.sm_mhz, r.telemetry.watts,
      "operation", "layer", "ms", "floor ms", "reached", "of which");
  for (const KernelTime& k : r.kernels) {
    const bool counted = k.floor_ms > 0;
    text += fmt::format("{:<20}{:>6}{:>12.4f}{:>12}{:>9}", k.name, k.layer < 0 ? "-" : std::to_string(k.layer), k.ms,
                        counted ? fmt::format("{:.4f}", k.floor_ms) : "-",
                        counted ? fmt::format("{:.0f}%", k.floor_ms / k.ms * 100) : "-");
    const auto parts = std::count_if(k.parts.begin(), k.parts.end(), [](double ms) { return ms > 0; });
    for (size_t i = 0; parts > 1 && i < kStages; ++i) {
      const auto stage = static_cast<Stage>(i);
      if (k.parts[stage] > 0) text += fmt::format("  {} {:.4f}", stage_name(stage), k.parts[stage]);
    }
    text += '\n';
  }
  return text;
}

std::string kernels_json(const KernelReport& r) {
  return fmt::format(R"({{"bench":"kernels","rows":{},"sequences":{},"context":{},{},{},"kernels":{}}})"
                     "\n",
                     r.options.rank.rows, r.options.rank.sequences, r.options.rank.context, machine_json(r.machine),
                     telemetry_json(r.telemetry), list_json(r.kernels, [](const KernelTime& k) {
                       return fmt::format(R"({{"name":"{}","stage":"{}","layer":{},"ms":{:.5f},"floor_ms":{:.5f}}})",
                                          k.name, stage_name(k.stage), k.layer, k.ms, k.floor_ms);
                     }));
}

}  // namespace mdi::bench
