#include "checkpoint/memory_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>

#include "checkpoint/byte_size.h"
#include "checkpoint/plan_buffers.h"
#include "core/error.h"

namespace mdi {

namespace {

constexpr int64_t kMaxSequences = 1'000'000;
constexpr int64_t kDefaultContext = 131072;

template <class T>
uint64_t divide_up(T value, T by) {
  return static_cast<uint64_t>((value + by - 1) / by);
}

void check_range(const char* option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw Error(option, fmt::format("expected {} to {}, found {}", low, high, value));
}

PlanOptions resolved(const ModelConfig& c, PlanOptions o) {
  check_range("--ep", o.ep, 1, 4096);
  if (o.dp == 0) o.dp = o.ep;
  check_range("--dp", o.dp, 1, o.ep);
  if (o.ep % o.dp != 0) throw Error("--dp", fmt::format("expected a divisor of --ep {}, found {}", o.ep, o.dp));
  if (o.context == 0) o.context = std::min<int64_t>(kDefaultContext, c.max_position_embeddings);
  check_range("--context", o.context, 1, c.max_position_embeddings);
  check_range("--step-rows", o.step_rows, 1, 1 << 20);
  check_range("--snapshots", o.snapshots, 0, 1 << 20);
  if (o.sequences) check_range("--sequences", *o.sequences, 1, kMaxSequences);
  o.drafts = o.drafts && c.n_mtp_layers > 0;
  o.vision = o.vision && c.has_vision;
  return o;
}

uint64_t sum(const std::vector<PlanLine>& lines) {
  uint64_t bytes = 0;
  for (const PlanLine& line : lines) bytes += line.bytes;
  return bytes;
}

// One rank's share of n experts, of which `bytes` is the sum.
uint64_t local_experts(uint64_t bytes, int64_t n, int ep) {
  return n == 0 ? 0 : bytes / static_cast<uint64_t>(n) * divide_up<int64_t>(n, ep);
}

class Planner {
 public:
  explicit Planner(const ModelConfig& config) : c_(config), sums_(sum_weights(config)) {}

  // The best placement and, where it is open, the largest number of sequences.
  MemoryPlan best(const PlanOptions& o) const {
    const auto placements = candidates(o);
    if (!o.device_memory) return plan(o, placements.front(), o.sequences.value_or(o.dp));
    for (const Placement p : placements) {
      if (o.sequences) {
        MemoryPlan m = plan(o, p, *o.sequences);
        if (m.fits) return m;
      } else {
        const int64_t n = largest(1, kMaxSequences / o.dp, [&](int64_t each) { return plan(o, p, each * o.dp).fits; });
        if (n > 0) return plan(o, p, n * o.dp);
      }
    }
    return plan(o, placements.back(), o.sequences.value_or(o.dp));
  }

  std::vector<std::string> remedies(const PlanOptions& o) const {
    std::vector<std::string> out;
    const auto helps = [&](const std::function<void(PlanOptions&)>& change) {
      PlanOptions changed = o;
      change(changed);
      return best(changed).fits;
    };
    for (const Placement p : {Placement::kHost, Placement::kFile}) {
      const bool room = p == Placement::kFile || host_has_room(o);
      if (o.engram == Placement::kDevice && room && helps([p](PlanOptions& x) { x.engram = p; })) {
        out.push_back(fmt::format("--engram {}", placement_name(p)));
        break;
      }
    }
    const int64_t rows = 128 * largest(1, o.step_rows / 128, [&](int64_t n) {
                           return helps([n](PlanOptions& x) { x.step_rows = 128 * n; });
                         });
    if (rows > 0) out.push_back(fmt::format("--step-rows {}", rows));
    if (o.sequences) {
      const int64_t n =
          largest(1, *o.sequences - 1, [&](int64_t s) { return helps([s](PlanOptions& x) { x.sequences = s; }); });
      if (n > 0) out.push_back(fmt::format("--sequences {}", n));
    }
    const int64_t blocks = largest(1, (o.context - 1) / kPlanBlockTokens, [&](int64_t n) {
      return helps([n](PlanOptions& x) { x.context = n * kPlanBlockTokens; });
    });
    if (blocks > 0) out.push_back(fmt::format("--context {}", blocks * kPlanBlockTokens));
    if (o.drafts && helps([](PlanOptions& x) { x.drafts = false; })) out.emplace_back("--no-drafts");
    if (o.vision && helps([](PlanOptions& x) { x.vision = false; })) out.emplace_back("--no-vision");
    for (int ep = o.ep * 2; ep <= std::max(1, c_.n_routed_experts); ep *= 2) {
      const int dp = o.dp == o.ep ? ep : o.dp;
      if (!helps([ep, dp](PlanOptions& x) { x.ep = ep, x.dp = dp; })) continue;
      out.push_back(dp == ep ? fmt::format("--ep {}", ep) : fmt::format("--ep {} --dp {}", ep, dp));
      break;
    }
    out.push_back(fmt::format("--device-memory {} ({})", best(o).total, size_text(best(o).total)));
    return out;
  }

 private:
  // The largest n in [low, high] for which `ok` holds, which must hold for all smaller ones too; 0 if for none.
  static int64_t largest(int64_t low, int64_t high, const std::function<bool(int64_t)>& ok) {
    if (high < low || !ok(low)) return 0;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (ok(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // A tenth of the host's memory stays for everything else.
  bool host_has_room(const PlanOptions& o) const { return sums_.engram_tables <= o.host_memory / 10 * 9; }

  std::vector<Placement> candidates(const PlanOptions& o) const {
    if (sums_.engram_tables == 0) return {Placement::kDevice};
    if (o.engram) return {*o.engram};
    if (host_has_room(o)) return {Placement::kDevice, Placement::kHost};
    return {Placement::kDevice, Placement::kFile};
  }

  void add_weights(MemoryPlan& m) const {
    const PlanOptions& o = m.options;
    m.dense = sums_.dense + (o.drafts ? sums_.draft_dense : 0) + (o.vision ? sums_.vision : 0);
    m.experts = local_experts(sums_.experts, int64_t{c_.n_routed_experts}, o.ep);
    if (o.drafts) m.draft_experts = local_experts(sums_.draft_experts, c_.dspark_n_routed_experts, o.ep);
    m.engram_total = sums_.engram_tables;
    m.engram_share = divide_up<uint64_t>(sums_.engram_tables, static_cast<uint64_t>(o.ep));
    m.wo_a_widened = sums_.wo_a;
    if (m.engram == Placement::kDevice) {
      for (const int64_t rows : c_.engram_num_embeddings) {
        m.engram_device += divide_up<int64_t>(rows, o.ep) * sums_.engram_row;
      }
    }
    const auto add = [&m](const char* name, uint64_t bytes, std::string formula, const char* reason) {
      if (bytes > 0) m.weights.push_back({name, bytes, std::move(formula), reason});
    };
    add("dense", m.dense, "everything but routed experts and engram tables", "replicated on every rank");
    add("routed experts", m.experts,
        fmt::format("{} of {} experts x {} layers", divide_up<int64_t>(c_.n_routed_experts, o.ep), c_.n_routed_experts,
                    c_.n_layers),
        "a contiguous range; kept in fp4, never expanded");
    add("draft experts", m.draft_experts,
        fmt::format("{} of {} experts x {} layers", divide_up<int64_t>(c_.dspark_n_routed_experts, o.ep),
                    c_.dspark_n_routed_experts, c_.n_mtp_layers),
        "likewise");
    add("engram tables", m.engram_device, o.ep == 1 ? "all rows" : fmt::format("ceil(rows / {}) of each table", o.ep),
        "a contiguous range of rows; the others are read from the peers that have them");
  }

  MemoryPlan plan(const PlanOptions& o, Placement engram, int64_t sequences) const {
    MemoryPlan m;
    m.options = o;
    m.options.sequences = sequences;
    m.engram = engram;
    add_weights(m);
    m.sequences = static_cast<int64_t>(divide_up<int64_t>(sequences, o.dp));
    const auto blocks_each = static_cast<int64_t>(divide_up<int64_t>(o.context, kPlanBlockTokens));
    m.block_bytes = mdi::block_bytes(c_);
    m.bytes_per_token = m.block_bytes / kPlanBlockTokens;
    m.blocks = m.sequences * blocks_each;
    const auto slots = slot_lines(c_, o.drafts);
    m.slot_bytes = sum(slots);
    const auto n = static_cast<uint64_t>(m.sequences);
    m.state.push_back({"blocks", m.block_bytes * static_cast<uint64_t>(m.blocks),
                       fmt::format("{} blocks of {} tokens, {} bytes each", m.blocks, kPlanBlockTokens, m.block_bytes),
                       "compressed rows and index keys of all sources, fp4"});
    for (const PlanLine& line : slots) {
      m.state.push_back({line.name, line.bytes * n, fmt::format("{} sequences x {}", n, line.formula), line.reason});
    }
    m.workspaces = workspace_lines(c_, o, m.sequences);
    m.weight_bytes = sum(m.weights);
    m.state_bytes = sum(m.state);
    m.workspace_bytes = sum(m.workspaces);
    m.total = m.weight_bytes + m.state_bytes + m.workspace_bytes + o.reserve;
    m.snapshot_bytes = m.slot_bytes * static_cast<uint64_t>(o.snapshots);
    m.host_bytes = engram == Placement::kHost ? m.engram_total : 0;
    if (o.device_memory) {
      m.fits = m.total <= *o.device_memory;
      m.rest = m.fits ? *o.device_memory - m.total : 0;
      m.missing = m.fits ? 0 : m.total - *o.device_memory;
    }
    return m;
  }

  const ModelConfig& c_;
  WeightSums sums_;
};

}  // namespace

const char* placement_name(Placement p) {
  switch (p) {
    case Placement::kDevice:
      return "device";
    case Placement::kHost:
      return "host";
    case Placement::kFile:
      return "file";
  }
  return "?";
}

MemoryPlan plan_memory(const ModelConfig& config, const PlanOptions& options) {
  const PlanOptions o = resolved(config, options);
  const Planner planner(config);
  MemoryPlan m = planner.best(o);
  if (!m.fits) m.remedies = planner.remedies(o);
  return m;
}

}  // namespace mdi
