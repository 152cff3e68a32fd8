// The parts of `mdi bench` that need no GPU: routing, floors, comparison, the plan, and what is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/inventory.h"
#include "checkpoint/synth_presets.h"
#include "core/error.h"
#include "engine/bench/report.h"
#include "kernels/cpu/backend.h"
#include "model/place.h"

namespace mdi::bench {
namespace {

constexpr int64_t kTokens = 16384;
constexpr int32_t kTopk = 6, kExperts = 384;

TEST(BenchRouting, TokensChooseDifferentExperts) {
  for (const Routing routing : {Routing::kRandom, Routing::kBalanced, Routing::kSkewed}) {
    const auto index = make_routing(routing, 1000, kTopk, kExperts, 3);
    ASSERT_EQ(index.size(), 6000u);
    for (size_t t = 0; t < 1000; ++t) {
      const std::set<int32_t> chosen(index.begin() + static_cast<ptrdiff_t>(6 * t),
                                     index.begin() + static_cast<ptrdiff_t>(6 * t + 6));
      EXPECT_EQ(chosen.size(), 6u) << routing_name(routing) << " token " << t;
      EXPECT_GE(*chosen.begin(), 0);
      EXPECT_LT(*chosen.rbegin(), kExperts);
    }
    EXPECT_EQ(index, make_routing(routing, 1000, kTopk, kExperts, 3));
    EXPECT_NE(index, make_routing(routing, 1000, kTopk, kExperts, 4));
    EXPECT_EQ(routing_from_name(routing_name(routing)), routing);
  }
  EXPECT_THROW(make_routing(Routing::kRandom, 10, 7, 6, 0), Error);
  EXPECT_THROW(routing_from_name("even"), Error);
}

TEST(BenchRouting, LoadsAreAsNamed) {
  const auto load = [](Routing routing, int32_t first, int32_t count) {
    return expert_load(make_routing(routing, kTokens, kTopk, kExperts, 1), first, count);
  };
  const ExpertLoad even = load(Routing::kBalanced, 0, 96);
  EXPECT_EQ(even.rows, kTokens * kTopk / 4);
  EXPECT_EQ(even.active, 96);
  EXPECT_EQ(even.most, 256);
  // Binomial: 24,576 rows with a deviation of 136; a single expert's 256 with one of 16.
  const ExpertLoad random = load(Routing::kRandom, 0, 96);
  EXPECT_NEAR(static_cast<double>(random.rows), 24576, 5 * 136);
  EXPECT_GT(random.most, 270);
  EXPECT_LT(random.most, 340);
  const ExpertLoad skewed = load(Routing::kSkewed, 0, kExperts);
  EXPECT_EQ(skewed.rows, kTokens * kTopk);
  EXPECT_GT(skewed.most, 1500);  // the first of 384 by rank^-0.5 gets about ten times the mean
  EXPECT_EQ(skewed.active, kExperts);
}

StepShape prefill(const ModelConfig& config, int64_t kept, bool bounded) {
  StepShape s;
  s.rows = 4096;
  s.context = 131072;
  s.samples = 1;
  s.kept = kept;
  s.bounds_source = bounded;
  s.ranks = 4;
  s.experts = 96;
  s.load.assign(static_cast<size_t>(config.n_layers), {.rows = 24576, .active = 96, .most = 256});
  return s;
}

double total(const PerStage<double>& ms) {
  double sum = 0;
  for (const double v : ms) sum += v;
  return sum;
}

TEST(BenchFloors, OfThePrefillStep) {
  const ModelConfig c = rank_config();
  const PerStage<double> exact = step_floors(c, prefill(c, 4096, false));
  // By hand: 24,576 rows x 3 x 5,120 x 2,304 multiply-adds a layer at 1,286 TFLOP/s, 40 layers.
  EXPECT_NEAR(exact[Stage::kRouted], 40 * 24576.0 * 3 * 5120 * 2304 * 2 / 1286e9, 1e-6);
  // Two sublayers read and write 168 MB of stream each; the mixes' fp32 weights (2 MB) come on top.
  EXPECT_NEAR(exact[Stage::kStream], 80 * (2 * 4096.0 * 4 * 5120 * 2 + 24 * 20480 * 4) / 4267e6, 1e-6);
  // 38 layers with 640 keys a query are bound by operations; two with 128 by the queries' and outputs' bytes.
  const double window_only = (4 * 4096.0 * 32768 + (128 + 4096) * 528) / 4267e6;
  EXPECT_NEAR(exact[Stage::kAttention], 4 * 4096.0 * 32768 * 38 * 640 / 672e9 + 2 * window_only, 1e-6);
  EXPECT_EQ(exact[Stage::kReplayTail], 0);
  EXPECT_GT(total(exact), 120);
  EXPECT_LT(total(exact), 160);

  const PerStage<double> replay = step_floors(c, prefill(c, 128, false));
  EXPECT_NEAR(replay[Stage::kRouted], exact[Stage::kRouted] * 21 / 40, 1e-6);
  EXPECT_GT(replay[Stage::kReplayTail], 5);  // 19 layers' weights at least
  EXPECT_LT(total(replay), 0.65 * total(exact));
  const PerStage<double> bounded = step_floors(c, prefill(c, 128, true));
  EXPECT_LT(total(bounded), total(replay));
  EXPECT_NEAR(bounded[Stage::kRouted], exact[Stage::kRouted] * 20 / 40, 1e-6);
}

TEST(BenchFloors, OperationsAddUpToTheirStages) {
  const ModelConfig c = rank_config();
  const StepShape s = prefill(c, 4096, false);
  const PerStage<double> step = step_floors(c, s);
  const auto sum = [&](std::string_view name) {
    double ms = 0;
    for (int layer = 0; layer < c.n_layers; ++layer) ms += operation_floor(c, s, layer, name);
    return ms;
  };
  EXPECT_NEAR(sum("sparse attention"), step[Stage::kAttention], 1e-9);
  EXPECT_NEAR(sum("gate"), step[Stage::kGate], 1e-9);
  EXPECT_NEAR(sum("shared expert"), step[Stage::kShared], 1e-9);
  EXPECT_NEAR(sum("engram"), step[Stage::kEngram], 1e-9);
  EXPECT_NEAR(sum("index select"), step[Stage::kIndexScores] + step[Stage::kSelection], 1e-9);
  EXPECT_NEAR(sum("routed experts"), step[Stage::kRouted] + step[Stage::kExchange], 1e-9);
  EXPECT_NEAR(sum("attention input") + sum("attention output") + sum("compress"), step[Stage::kProjections], 1e-9);
  // Not fused, the two halves of a sublayer read the stream twice.
  EXPECT_GT(2 * (sum("hc collapse") + sum("hc expand")), 1.4 * step[Stage::kStream]);
  EXPECT_GT(operation_floor(c, s, -1, "head"), 0.3);
  EXPECT_EQ(operation_floor(c, s, 3, "commit ring"), 0);
  EXPECT_EQ(operation_floor(c, s, 3, "index select"), 0);  // layer 3 reuses layer 2's selection
}

TEST(BenchFloors, OfADecodeStepAreBytes) {
  const ModelConfig c = rank_config();
  StepShape s = prefill(c, 64, false);
  s.rows = s.sequences = s.samples = s.kept = 64;
  s.load.assign(static_cast<size_t>(c.n_layers), {.rows = 384, .active = 94, .most = 12});
  const PerStage<double> ms = step_floors(c, s);
  const double expert_bytes = 94 * 3 * 5120.0 * 2304 * (0.5 + 1.0 / 32);
  EXPECT_NEAR(ms[Stage::kRouted], 40 * expert_bytes / 4267e6, 0.4);
  // Every source's keys of every sequence, 68 bytes each; the four filtered layers see 16,384 of them.
  const double keys = 64.0 * (3 * 65536 + 131072 + 4 * 16384) * 68;
  EXPECT_NEAR(ms[Stage::kIndexScores], keys / 4267e6, 0.05);
}

TEST(BenchFloors, TheWireCarriesWhatOthersSend) {
  const ModelConfig c = rank_config();
  const double a_row = 5120.0 * 33 / 32 + 6 * 8 + 5120 * 2;
  EXPECT_DOUBLE_EQ(wire_bytes(c, prefill(c, 4096, false)), 40 * 3 * 4096 * a_row);
  EXPECT_DOUBLE_EQ(wire_bytes(c, prefill(c, 128, false)), 3 * (21 * 4096 + 19 * 128) * a_row);
  EXPECT_DOUBLE_EQ(wire_bytes(c, prefill(c, 128, true)), 3 * (20 * 4096 + 20 * 128) * a_row);
}

TEST(BenchCompare, CountsWhatIsOutside) {
  const std::vector<double> want = {1, -1, 1, -1, 2, 2, 2, 2};
  std::vector<double> got = want;
  EXPECT_TRUE(compare_rows("x", 0, got, want, 4, {}).passed);
  got[5] = 2 + 1.0 / 64;  // one bf16 rounding at 2
  EXPECT_FALSE(compare_rows("x", 0, got, want, 4, {}).passed);
  EXPECT_TRUE(compare_rows("x", 0, got, want, 4, {.ulps = 1}).passed);
  EXPECT_TRUE(compare_rows("x", 0, got, want, 4, {.row = 0.01}).passed);
  EXPECT_TRUE(compare_rows("x", 0, got, want, 4, {.share = 0.125}).passed);
  EXPECT_TRUE(compare_rows("x", 0, got, want, 4, {.share = 0.125, .mean = 1e-3}).passed);  // 1/128 over 8 elements
  EXPECT_FALSE(compare_rows("x", 0, got, want, 4, {.share = 0.125, .mean = 9e-4}).passed);
  const Checked c = compare_rows("x", 7, got, want, 4, {});
  EXPECT_EQ(c.wrong, 1);
  EXPECT_EQ(c.layer, 7);
  EXPECT_DOUBLE_EQ(c.max, 1.0 / 128);
  got[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(compare_rows("x", 0, got, want, 4, {.ulps = 8, .row = 8, .share = 1}).passed);
  EXPECT_THROW(compare_rows("x", 0, {1}, want, 4, {}), Error);
}

TEST(BenchCompare, Choices) {
  const std::vector<int32_t> want = {1, 4, 9, -1, 0, 1, 2, 3};
  EXPECT_TRUE(compare_choices("c", 0, want, want, 4, 0).passed);
  const Checked other = compare_choices("c", 0, {1, 5, 9, -1, 0, 1, 2, 3}, want, 4, 0.1);
  EXPECT_EQ(other.wrong, 1);
  EXPECT_FALSE(other.passed);
  EXPECT_TRUE(compare_choices("c", 0, {1, 5, 9, -1, 0, 1, 2, 3}, want, 4, 0.2).passed);
  EXPECT_FALSE(compare_choices("c", 0, {1, 4, 9, 11, 0, 1, 2, 3}, want, 4, 0.1).passed);  // one too many
}

TEST(BenchPlan, EngramTakesWhatIsLeft) {
  const ModelConfig c = rank_config();
  MemoryPlan plan;
  const EngramPlacement whole = place_engram(c, {}, 150'000'000'000, "a GPU", plan);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(whole.absent, 0u);
  EXPECT_EQ(whole.rows[0], (384006168 + 3) / 4);
  const EngramPlacement part = place_engram(c, {}, 100'000'000'000, "a GPU", plan);
  EXPECT_TRUE(plan.fits);
  EXPECT_GT(part.device, 5'000'000'000u);
  EXPECT_EQ(part.device + part.absent, whole.device);
  EXPECT_LE(plan.total + part.device, 100'000'000'000u);
  try {
    place_engram(c, {}, 80'000'000'000, "a GPU", plan);
    FAIL() << "80 GB cannot hold a rank";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("a GPU: the model needs"), std::string::npos) << text;
    EXPECT_NE(text.find("routed experts"), std::string::npos) << text;
  }
}

// As the bench makes its rank: tensors are known by an address until they are placed, and filled where they then lie.
TEST(BenchRank, EveryTensorIsPutOnceAndNowhereTwice) {
  const ModelConfig config = synth_preset("tiny");
  const std::vector<TensorSpec> specs = inventory(config);
  std::vector<uint64_t> handles(specs.size());
  size_t next = 0;
  Model model =
      load_model(Checkpoint::in_memory(config, "in memory", [&](const TensorSpec&) { return &handles[next++]; }),
                 std::vector<int32_t>(static_cast<size_t>(config.vocab_size)));
  EXPECT_EQ(next, specs.size());
  const auto context = make_cpu_context(1);
  std::vector<int> times(specs.size());
  std::vector<std::pair<std::byte*, std::byte*>> places;
  const DeviceBuffer buffer = place_weights(*context, model, [&](void* to, const void* from, int64_t bytes) {
    const auto index = static_cast<size_t>(static_cast<const uint64_t*>(from) - handles.data());
    ASSERT_LT(index, specs.size());
    ++times[index];
    EXPECT_EQ(bytes, specs[index].bytes()) << specs[index].name;
    places.emplace_back(static_cast<std::byte*>(to), static_cast<std::byte*>(to) + bytes);
  });
  for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(times[i], 1) << specs[i].name;
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i + 1 < places.size(); ++i) EXPECT_LE(places[i].second, places[i + 1].first);
  EXPECT_LE(places.back().second, buffer.as<std::byte>() + placed_bytes(model));
}

TEST(BenchPlan, IsSaidWhereThereIsNoGpu) {
  const std::string text = plan_summary(rank_config(), {});
  for (const char* piece : {"one rank takes 139", "weights 13", "workspaces", "reserve 3.6"}) {
    EXPECT_NE(text.find(piece), std::string::npos) << piece << "\n" << text;
  }
}

BenchReport example() {
  BenchReport r;
  r.what = "step";
  r.machine.device = "a GPU";
  r.load.assign(40, {.rows = 24576, .active = 96, .most = 256});
  RunResult row;
  row.name = "--replay exact";
  row.step_ms = {401, 400, 402, 403};
  row.stage_ms[Stage::kRouted] = 150;
  row.stage_ms[Stage::kAttention] = 242;
  row.floor_ms[Stage::kRouted] = 54;
  row.wire_bytes = 9e9;
  r.rows.push_back(row);
  r.checks.push_back(compare_rows("embed h", -1, {1}, {2}, 1, {}));
  return r;
}

TEST(BenchReport, SaysTheStep) {
  const BenchReport r = example();
  EXPECT_DOUBLE_EQ(r.rows[0].median_ms(), 401.5);
  const std::string text = report_text(r);
  for (const char* piece : {"401.50 ms", "10,201", "20.00 ms", "36%", "97.6%", "36,171", "FAIL", "1 failed"}) {
    EXPECT_NE(text.find(piece), std::string::npos) << piece << "\n" << text;
  }
  EXPECT_FALSE(all_passed(r.checks));
}

TEST(BenchReport, JsonHoldsTheSameNumbers) {
  const auto json = nlohmann::json::parse(report_json(example()));
  const auto& row = json.at("runs").at(0);
  EXPECT_EQ(row.at("step_ms").size(), 4u);
  EXPECT_DOUBLE_EQ(row.at("median_ms").get<double>(), 401.5);
  EXPECT_DOUBLE_EQ(row.at("wire_ms").get<double>(), 20);
  EXPECT_DOUBLE_EQ(row.at("stages").at("routed experts").at("floor_ms").get<double>(), 54);
  EXPECT_FALSE(json.at("checks").at(0).at("passed").get<bool>());
  KernelReport kernels;
  kernels.kernels.push_back({.stage = Stage::kGate, .name = "gate", .layer = 3, .ms = 0.25});
  const auto other = nlohmann::json::parse(kernels_json(kernels));
  EXPECT_EQ(other.at("kernels").at(0).at("stage"), "gate");
}

}  // namespace
}  // namespace mdi::bench
