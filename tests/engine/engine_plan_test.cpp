// The memory plan of an engine: what it counts is what an engine allocates, what it plans fits, and what does not fit
// is refused with the options that would make it fit.
#include "engine/engine_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "serving.h"

namespace mdi {
namespace {

using testing::tiny_model;

// The CPU's operations, whose allocations are added up.
struct Allocated {
  int64_t device = 0, host = 0;
};
Allocated& allocated() {
  static Allocated sums;
  return sums;
}
const Ops& adding_ops() {
  static const std::unique_ptr<CpuContext> plain = make_cpu_context(1);
  static const Ops ops = [] {
    Ops made = *plain->ops;
    made.allocate = [](Context& c, int64_t bytes) {
      allocated().device += bytes;
      return plain->ops->allocate(c, bytes);
    };
    made.allocate_host = [](Context& c, int64_t bytes) {
      allocated().host += bytes;
      return plain->ops->allocate_host(c, bytes);
    };
    return made;
  }();
  return ops;
}

EngineOptions small() {
  EngineOptions o;
  o.slots = 5;
  o.max_length = 700;
  o.max_rows = 96;
  o.snapshots = 9;
  return o;
}

TEST(EnginePlan, CountsWhatAnEngineAllocates) {
  const auto context = make_cpu_context(1);
  context->ops = &adding_ops();
  for (const bool draft : {true, false}) {
    EngineOptions o = small();
    o.draft = draft;
    o.blocks = 31;
    const EngineBytes planned = dry_run(tiny_model(), *context, o);
    allocated() = {};
    const Engine engine(*context, tiny_model(), nullptr, o);
    EXPECT_EQ(planned.device, allocated().device);
    EXPECT_EQ(planned.host + planned.snapshots, allocated().host);
    EXPECT_EQ(planned.state + planned.buffers + planned.drafts + planned.images + planned.graphs, planned.device);
    EXPECT_EQ(planned.drafts > 0, draft);
    EXPECT_GT(planned.snapshots, 0);
    EXPECT_GT(planned.buffers, 0);
  }
}

// The tower's buffers are counted by operations that run nothing.
TEST(EnginePlan, CountsTheVisionTowersBuffers) {
  static const Model model = testing::load_checkpoint(testing::golden_dir() / "tiny-vision");
  const auto context = make_cpu_context(1);
  context->ops = &adding_ops();
  PlanRequest request;
  request.slots = 2;
  request.max_length = 250;
  const EngineOptions o = plan_engine(model, *context, request, {});
  const EngineBytes planned = dry_run(model, *context, o);
  EXPECT_GT(planned.images, 0);
  allocated() = {};
  const Engine engine(*context, model, nullptr, o);
  EXPECT_EQ(planned.device, allocated().device);
  EXPECT_EQ(planned.host + planned.snapshots, allocated().host);
}

int64_t total(const EngineOptions& o, const Context& context) {
  const EngineBytes e = dry_run(tiny_model(), context, o);
  return e.device + e.host + e.snapshots;
}

TEST(EnginePlan, WhatIsLeftOpenIsAsLargeAsItFits) {
  const auto context = make_cpu_context(1);
  const int64_t budget = total(small(), *context) * 2;
  PlanRequest request;
  request.host_memory = static_cast<uint64_t>(budget);
  EngineOptions base;
  base.tpot_target = 0.25;
  const EngineOptions o = plan_engine(tiny_model(), *context, request, base);
  EXPECT_EQ(o.tpot_target, 0.25);
  EXPECT_LE(total(o, *context), budget);
  EXPECT_GT(total(o, *context), budget * 9 / 10);
  const Engine engine(*context, tiny_model(), nullptr, o);  // takes the options
  // One block more does not fit, or no slot could use it.
  EngineOptions more = o;
  ++more.blocks;
  const auto useful = static_cast<int32_t>(o.slots * blocks_for(o.max_length) + 1);
  EXPECT_TRUE(o.blocks == useful || total(more, *context) > budget);

  request.slots = 3;
  request.max_length = 500;
  request.max_rows = 64;
  request.snapshots = 4;
  const EngineOptions fixed = plan_engine(tiny_model(), *context, request);
  EXPECT_EQ(fixed.slots, 3);
  EXPECT_EQ(fixed.max_length, 500);
  EXPECT_EQ(fixed.max_rows, 64);
  EXPECT_EQ(fixed.snapshots, 4);
  EXPECT_EQ(fixed.blocks, 3 * 4 + 1);  // no more than three sequences of 500 tokens can use
}

TEST(EnginePlan, WhatDoesNotFitIsRefusedWithWhatWouldFit) {
  const auto context = make_cpu_context(1);
  PlanRequest request;
  request.host_memory = static_cast<uint64_t>(total(small(), *context));
  request.slots = 50;
  request.max_rows = 96;
  request.snapshots = 9;
  try {
    plan_engine(tiny_model(), *context, request);
    FAIL() << "50 slots do not fit into the memory of 5";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("50 slots"), std::string::npos) << text;
    EXPECT_NE(text.find("too few"), std::string::npos) << text;
    const size_t at = text.find("--slots ");
    ASSERT_NE(at, std::string::npos) << text;
    request.slots = std::stoi(text.substr(at + 8));
    EXPECT_LT(*request.slots, 50);
    EXPECT_LE(total(plan_engine(tiny_model(), *context, request), *context),
              static_cast<int64_t>(*request.host_memory));
  }
  request = {};
  request.host_memory = 1000;
  request.max_length = 500;
  try {
    plan_engine(tiny_model(), *context, request);
    FAIL() << "nothing fits into 1,000 bytes";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no option alone makes it fit"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace mdi
