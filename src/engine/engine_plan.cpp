#include "engine/engine_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "checkpoint/byte_size.h"
#include "core/error.h"
#include "engine/engine_core.h"
#include "engine/gpu_memory.h"

namespace mdi {

namespace {

// Of a layer in a recorded step's two graphs on the device (measured: 0.25 MB), and of the driver beside them.
constexpr int64_t kGraphLayerBytes = int64_t{384} << 10, kDriverBytes = int64_t{256} << 20;

// A backend whose allocations are counted and never made. Nothing reads what it gives.
struct Counting : Context {
  int64_t device = 0, host = 0;
};

const Ops& counting_ops(bool records) {
  alignas(64) static std::byte nowhere[64];
  static const auto make = [](bool record) {
    Ops ops{};
    ops.name = "counting";
    ops.allocate = [](Context& c, int64_t bytes) -> void* {
      static_cast<Counting&>(c).device += bytes;
      return nowhere;
    };
    ops.allocate_host = [](Context& c, int64_t bytes) -> void* {
      static_cast<Counting&>(c).host += bytes;
      return nowhere;
    };
    ops.release = ops.release_host = [](Context&, void*) {};
    ops.copy_in = [](Context&, void*, const void*, int64_t) {};
    ops.vision_linear = [](Context&, const VisionLinearArgs&) {};
    ops.vision_attention = [](Context&, const VisionAttentionArgs&) {};  // a backend with it runs the vision tower
    if (record) ops.record = [](Context&, const std::function<void()>&) -> void* { return nullptr; };
    return ops;
  };
  static const Ops plain = make(false), recording = make(true);
  return records ? recording : plain;
}

// What the machine could give to somebody now; 0 where it does not say.
uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

struct Budget {
  bool gpu = false;
  int64_t device = 0, host = 0;
};

int64_t device_need(const Budget& b, const EngineBytes& e) { return b.gpu ? e.device : 0; }
int64_t host_need(const Budget& b, const EngineBytes& e) { return e.host + e.snapshots + (b.gpu ? 0 : e.device); }

class Planner {
 public:
  Planner(const Model& model, const Context& context, const PlanRequest& request, EngineOptions base, Budget budget)
      : model_(model), context_(context), r_(request), base_(std::move(base)), budget_(budget) {
    base_.draft = base_.draft && request.draft;
  }

  // The largest sizes that fit, or nothing; then smallest() says what was tried last.
  std::optional<EngineOptions> fit() {
    const ModelConfig& c = model_.config();
    const int64_t blocks = r_.blocks ? *r_.blocks - 1 : INT32_MAX;
    int64_t longest = std::min<int64_t>({131072, c.max_position_embeddings, blocks * kBlockTokens});
    longest = std::max<int64_t>(longest, 2);
    for (int64_t length = r_.max_length.value_or(longest);; length /= 2) {
      const int32_t most = budget_.gpu ? 2048 : 512;
      for (int32_t rows = r_.max_rows.value_or(std::max(most, r_.slots.value_or(1)));; rows /= 2) {
        if (std::optional<EngineOptions> o = with(length, rows)) return o;
        if (r_.max_rows || rows / 2 < std::max(64, r_.slots.value_or(1))) break;
      }
      if (r_.max_length || length / 2 < 256) return std::nullopt;
    }
  }
  const EngineOptions& smallest() const { return smallest_; }

 private:
  bool fits(const EngineOptions& o) const {
    const EngineBytes e = dry_run(model_, context_, o);
    return device_need(budget_, e) <= budget_.device && host_need(budget_, e) <= budget_.host;
  }

  // The largest n in [low, high] for which options(n) fit, low - 1 if none does. Fewer always fit where more do.
  int64_t largest(int64_t low, int64_t high, const std::function<EngineOptions(int64_t)>& options) const {
    int64_t good = low - 1;
    while (good < high) {
      const int64_t middle = good + (high - good + 1) / 2;
      if (fits(options(middle))) {
        good = middle;
      } else {
        high = middle - 1;
      }
    }
    return good;
  }

  std::optional<EngineOptions> with(int64_t length, int32_t rows) {
    EngineOptions o = base_;
    o.max_length = length;
    o.max_rows = rows;
    o.snapshots = r_.snapshots.value_or(0);
    const int64_t each = blocks_for(length);
    // One whole sequence, and for the others a start.
    const auto at_least = [&](int64_t slots) { return each + 1 + (slots - 1) * std::min<int64_t>(each, 8); };
    const auto slots_of = [&](int64_t slots) {
      EngineOptions x = o;
      x.slots = static_cast<int32_t>(slots);
      x.blocks = r_.blocks.value_or(static_cast<int32_t>(at_least(slots)));
      return x;
    };
    if (r_.slots) {
      o = slots_of(*r_.slots);
    } else {
      const int64_t slots = largest(1, std::min(64, rows), slots_of);
      o = slots_of(std::max<int64_t>(slots, 1));
    }
    smallest_ = o;
    if (!fits(o)) return std::nullopt;
    if (!r_.snapshots) {
      o.snapshots = static_cast<int32_t>(largest(0, 1024, [&](int64_t n) {
        EngineOptions x = o;
        x.snapshots = static_cast<int32_t>(n);
        if (dry_run(model_, context_, x).snapshots > budget_.host / 8) x.snapshots = INT32_MAX / 2;
        return x;
      }));
    }
    if (!r_.blocks) {
      o.blocks = static_cast<int32_t>(largest(o.blocks, int64_t{o.slots} * each + 1, [&](int64_t n) {
        EngineOptions x = o;
        x.blocks = static_cast<int32_t>(n);
        return x;
      }));
    }
    return o;
  }

  const Model& model_;
  const Context& context_;
  PlanRequest r_;
  EngineOptions base_;
  Budget budget_;
  EngineOptions smallest_;
};

std::string too_little(const char* what, int64_t needed, int64_t there) {
  if (needed <= there) return {};
  const auto text = [](int64_t bytes) { return size_text(static_cast<uint64_t>(bytes)); };
  return fmt::format(" {} of {} memory, {} may be taken, {} too few;", text(needed), what, text(there),
                     text(needed - there));
}

Budget budget_of(const Context& context, const PlanRequest& request) {
  Budget budget{.gpu = context.ops->record != nullptr};
  const uint64_t host = request.host_memory ? *request.host_memory : available_memory() / 2;
  const uint64_t device = !budget.gpu ? 0 : request.device_memory ? *request.device_memory : gpu_free_memory();
  budget.host = static_cast<int64_t>(host);
  budget.device = static_cast<int64_t>(device);
  return budget;
}

}  // namespace

EngineBytes dry_run(const Model& model, const Context& context, const EngineOptions& options) {
  const bool records = context.ops->record != nullptr;
  EngineBytes e;
  const auto count = [&](const RunnerSizes& sizes) {
    Counting counting;
    counting.ops = &counting_ops(records);
    const Runner runner(counting, model, sizes);
    return std::pair{counting.device, counting.host};
  };
  RunnerSizes sizes = runner_sizes(model, options);
  sizes.warm = false;
  const auto [device, host] = count(sizes);
  RunnerSizes part = sizes;
  part.snapshots = 0;
  const int64_t host_without_snapshots = count(part).second;
  part.drafts = false;
  const int64_t without_drafts = count(part).first;
  {
    Counting counting;
    counting.ops = &counting_ops(records);
    const int32_t padding = records && options.record_steps ? 1 : 0;
    const StatePools pools = make_state(counting, model, options.slots + padding, options.blocks + padding);
    e.state = counting.device;
  }
  if (model.config().has_vision) {
    Counting counting;
    counting.ops = &counting_ops(records);
    const ImageEncoder encoder(counting, model);
    e.images = counting.device;
  }
  e.drafts = device - without_drafts;
  e.buffers = without_drafts - e.state;
  if (records) e.graphs = kDriverBytes;
  if (records && options.record_steps) {
    const int64_t layers = model.config().n_layers + model.draft_stages();
    e.graphs += static_cast<int64_t>(recorded_count(model, sizes)) * layers * kGraphLayerBytes;
  }
  e.device = device + e.images + e.graphs;
  e.snapshots = host - host_without_snapshots;
  e.host = host_without_snapshots;
  return e;
}

EngineOptions plan_engine(const Model& model, const Context& context, const PlanRequest& request, EngineOptions base) {
  const Budget budget = budget_of(context, request);
  Planner planner(model, context, request, base, budget);
  if (std::optional<EngineOptions> options = planner.fit()) return *options;

  const EngineOptions& o = planner.smallest();
  const EngineBytes e = dry_run(model, context, o);
  std::string text =
      fmt::format("an engine with {} slots, max_length {}, {} blocks, max_rows {} and {} snapshots needs", o.slots,
                  o.max_length, o.blocks, o.max_rows, o.snapshots);
  text += too_little("device", device_need(budget, e), budget.device);
  text += too_little("host", host_need(budget, e), budget.host);
  // Each option that was fixed, opened alone.
  std::string remedies;
  const auto try_open = [&](const char* option, auto PlanRequest::*field, auto value) {
    if (!(request.*field)) return;
    PlanRequest open = request;
    (open.*field).reset();
    Planner opened(model, context, open, base, budget);
    if (const auto found = opened.fit()) {
      remedies +=
          fmt::format("{}{} {}", remedies.empty() ? " it would fit with " : ", or with ", option, value(*found));
    }
  };
  try_open("--max-length", &PlanRequest::max_length, [](const EngineOptions& x) { return x.max_length; });
  try_open("--slots", &PlanRequest::slots, [](const EngineOptions& x) { return x.slots; });
  try_open("--blocks", &PlanRequest::blocks, [](const EngineOptions& x) { return x.blocks; });
  try_open("--max-rows", &PlanRequest::max_rows, [](const EngineOptions& x) { return x.max_rows; });
  try_open("--snapshots", &PlanRequest::snapshots, [](const EngineOptions& x) { return x.snapshots; });
  throw Error("memory plan", text + (remedies.empty() ? " no option alone makes it fit" : remedies));
}

}  // namespace mdi
