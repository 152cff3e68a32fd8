// The numbers of spec checkpoint.md section 5 and kv-cache.md section 1, and what the plan says where it does not fit.
#include "checkpoint/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "checkpoint/byte_size.h"
#include "checkpoint/synth_presets.h"
#include "core/error.h"

namespace mdi {
namespace {

const ModelConfig& released() {
  static const ModelConfig config = synth_preset("released");
  return config;
}

PlanOptions four_ranks(uint64_t device_memory) {
  PlanOptions o;
  o.ep = 4;
  o.device_memory = device_memory;
  o.host_memory = 1'000'000'000'000;
  return o;
}

uint64_t line(const std::vector<PlanLine>& lines, std::string_view name) {
  const auto at = std::find_if(lines.begin(), lines.end(), [name](const PlanLine& l) { return l.name == name; });
  return at == lines.end() ? 0 : at->bytes;
}

uint64_t sum(const std::vector<PlanLine>& lines) {
  uint64_t bytes = 0;
  for (const PlanLine& l : lines) bytes += l.bytes;
  return bytes;
}

bool mentions(const std::vector<std::string>& remedies, std::string_view option) {
  return std::any_of(remedies.begin(), remedies.end(),
                     [option](const std::string& r) { return r.starts_with(option); });
}

TEST(MemoryPlan, WeightsOfOneOfFourRanks) {
  const MemoryPlan m = plan_memory(released(), four_ranks(150'000'000'000));
  EXPECT_EQ(m.dense, 11530714440u);
  EXPECT_EQ(m.experts, 72194457600u);
  EXPECT_EQ(m.draft_experts, 1804861440u);
  EXPECT_EQ(m.without_engram(), 85530033480u);
  EXPECT_EQ(size_text(m.without_engram()), "85.53 GB");
  EXPECT_EQ(m.engram_total, 202758032400u);
  EXPECT_EQ(m.engram_share, 50689508100u);
  // Whole rows: the second table's rows are not a multiple of 4.
  EXPECT_EQ(m.engram_device, 50689508232u);
  EXPECT_EQ(m.wo_a_widened, 1342177280u);
}

TEST(MemoryPlan, OneRankHoldsTheWholeCheckpoint) {
  PlanOptions o;
  const MemoryPlan m = plan_memory(released(), o);
  EXPECT_EQ(m.weight_bytes, 510286023000u);
  EXPECT_TRUE(m.fits);
  EXPECT_EQ(m.engram, Placement::kDevice);
}

TEST(MemoryPlan, PartsThatAreLeftOut) {
  PlanOptions o;
  o.vision = false;
  o.drafts = false;
  const MemoryPlan m = plan_memory(released(), o);
  EXPECT_EQ(m.weight_bytes, 510286023000u - 970506240u - 713428872u - 7219445760u);
  EXPECT_EQ(line(m.workspaces, "vision tower"), 0u);
  EXPECT_EQ(line(m.workspaces, "draft logits"), 0u);
}

TEST(MemoryPlan, CacheOfTheReleasedModel) {
  PlanOptions o;
  o.sequences = 1;
  o.context = 1048576;
  const MemoryPlan m = plan_memory(released(), o);
  EXPECT_EQ(m.bytes_per_token, 890u);
  EXPECT_EQ(m.block_bytes, 113920u);
  EXPECT_EQ(m.blocks, 8192);
  EXPECT_EQ(size_text(line(m.state, "blocks")), "933.23 MB");
  EXPECT_EQ(line(m.state, "window rings"), 2906112u);
  EXPECT_EQ(line(m.state, "pending rows"), 16384u);
  EXPECT_EQ(line(m.state, "engram history"), 12u);
  EXPECT_EQ(m.slot_bytes, 2906112u + 16384u + 12u);
  EXPECT_EQ(m.snapshot_bytes, 64 * m.slot_bytes);
}

TEST(MemoryPlan, TheSumIsTheSumOfItsLines) {
  const MemoryPlan m = plan_memory(released(), four_ranks(150'000'000'000));
  EXPECT_EQ(sum(m.weights), m.weight_bytes);
  EXPECT_EQ(sum(m.state), m.state_bytes);
  EXPECT_EQ(sum(m.workspaces), m.workspace_bytes);
  EXPECT_EQ(m.total, m.weight_bytes + m.state_bytes + m.workspace_bytes + m.options.reserve);
  EXPECT_EQ(m.total + m.rest, 150'000'000'000u);
  for (const PlanLine& l : m.workspaces) {
    EXPECT_FALSE(l.formula.empty() || l.reason.empty()) << l.name;
  }
}

TEST(MemoryPlan, AsManySequencesAsFitAndNotOneMore) {
  PlanOptions o = four_ranks(150'000'000'000);
  const MemoryPlan most = plan_memory(released(), o);
  ASSERT_TRUE(most.fits);
  EXPECT_EQ(most.engram, Placement::kDevice);
  EXPECT_GT(most.sequences, 1);
  EXPECT_EQ(*most.options.sequences, 4 * most.sequences);
  o.engram = Placement::kDevice;
  o.sequences = 4 * most.sequences;
  EXPECT_TRUE(plan_memory(released(), o).fits);
  o.sequences = 4 * most.sequences + 1;
  const MemoryPlan over = plan_memory(released(), o);
  EXPECT_FALSE(over.fits);
  EXPECT_GT(over.missing, 0u);
  EXPECT_TRUE(mentions(over.remedies, "--sequences " + std::to_string(4 * most.sequences)));
  EXPECT_TRUE(mentions(over.remedies, "--engram host"));
}

TEST(MemoryPlan, EngramYieldsLast) {
  PlanOptions o = four_ranks(150'000'000'000);
  EXPECT_EQ(plan_memory(released(), o).engram, Placement::kDevice);
  o.device_memory = 120'000'000'000;
  EXPECT_EQ(plan_memory(released(), o).engram, Placement::kHost);
  EXPECT_EQ(plan_memory(released(), o).host_bytes, 202758032400u);
  o.host_memory = 128'000'000'000;
  EXPECT_EQ(plan_memory(released(), o).engram, Placement::kFile);
  EXPECT_EQ(plan_memory(released(), o).host_bytes, 0u);
  // Asked for more sequences than fit beside the tables, the tables go.
  o = four_ranks(150'000'000'000);
  const MemoryPlan most = plan_memory(released(), o);
  o.sequences = 4 * most.sequences + 4;
  const MemoryPlan more = plan_memory(released(), o);
  EXPECT_TRUE(more.fits);
  EXPECT_EQ(more.engram, Placement::kHost);
}

// Every remedy that the plan offers makes it fit.
TEST(MemoryPlan, RemediesHold) {
  PlanOptions o = four_ranks(91'500'000'000);
  o.sequences = 64;
  const MemoryPlan m = plan_memory(released(), o);
  ASSERT_FALSE(m.fits);
  EXPECT_EQ(m.total, *o.device_memory + m.missing);
  ASSERT_FALSE(m.remedies.empty());
  EXPECT_TRUE(mentions(m.remedies, "--step-rows"));
  EXPECT_TRUE(mentions(m.remedies, "--ep 8"));
  for (const std::string& remedy : m.remedies) {
    PlanOptions changed = o;
    const std::string option = remedy.substr(0, remedy.find(' '));
    const std::string value = remedy.substr(remedy.find(' ') + 1);
    if (option == "--step-rows") changed.step_rows = std::stoll(value);
    if (option == "--sequences") changed.sequences = std::stoll(value);
    if (option == "--context") changed.context = std::stoll(value);
    if (option == "--no-drafts") changed.drafts = false;
    if (option == "--no-vision") changed.vision = false;
    if (option == "--ep") changed.ep = std::stoi(value);
    if (option == "--device-memory") changed.device_memory = std::stoull(value);
    EXPECT_TRUE(plan_memory(released(), changed).fits) << remedy;
  }
  // A device that is far too small says what would do.
  o.device_memory = 8'000'000'000;
  const MemoryPlan tiny_device = plan_memory(released(), o);
  EXPECT_FALSE(tiny_device.fits);
  EXPECT_TRUE(mentions(tiny_device.remedies, "--device-memory"));
}

TEST(MemoryPlan, ScoresAreBoundedAtAnyContext) {
  PlanOptions o;
  for (const int64_t context : {128, 8192, 131072, 1048576}) {
    o.context = context;
    EXPECT_LE(line(plan_memory(released(), o).workspaces, "index scores, one tile"), 256u << 20) << context;
  }
}

TEST(MemoryPlan, OtherShapes) {
  for (const char* name : {"tiny", "tiny-vision", "slice"}) {
    const ModelConfig config = synth_preset(name);
    for (const int ep : {1, 2, 4, 8}) {
      PlanOptions o;
      o.ep = ep;
      o.device_memory = 24'000'000'000;
      o.host_memory = 1 << 30;
      const MemoryPlan m = plan_memory(config, o);
      EXPECT_TRUE(m.fits) << name << " " << ep;
      EXPECT_GE(m.sequences, 1) << name << " " << ep;
    }
  }
  ModelConfig plain = synth_preset("tiny");
  ShapeOverrides shape;
  shape.layers = 1;
  shape.draft_layers = 0;
  apply_overrides(plain, shape);
  PlanOptions o;
  o.device_memory = 2'000'000'000;
  o.reserve = 0;
  EXPECT_TRUE(plan_memory(plain, o).fits);
}

TEST(MemoryPlan, OptionsOutOfRangeAreNamed) {
  const auto message = [](const PlanOptions& o) -> std::string {
    try {
      plan_memory(released(), o);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  PlanOptions o;
  o.ep = 0;
  EXPECT_TRUE(message(o).starts_with("--ep"));
  o = {};
  o.ep = 4;
  o.dp = 3;
  EXPECT_TRUE(message(o).starts_with("--dp"));
  o = {};
  o.context = 2000000;
  EXPECT_TRUE(message(o).starts_with("--context"));
  o = {};
  o.step_rows = 0;
  EXPECT_TRUE(message(o).starts_with("--step-rows"));
  o = {};
  o.sequences = 0;
  EXPECT_TRUE(message(o).starts_with("--sequences"));
}

TEST(ByteSize, Reads) {
  EXPECT_EQ(parse_size("141GB", "x"), 141'000'000'000u);
  EXPECT_EQ(parse_size("80GiB", "x"), 80u * (uint64_t{1} << 30));
  EXPECT_EQ(parse_size("80gib", "x"), 80u * (uint64_t{1} << 30));
  EXPECT_EQ(parse_size("1.5 TB", "x"), 1'500'000'000'000u);
  EXPECT_EQ(parse_size("512M", "x"), 512'000'000u);
  EXPECT_EQ(parse_size("512Mi", "x"), 512u << 20);
  EXPECT_EQ(parse_size("4096", "x"), 4096u);
  EXPECT_EQ(parse_size("0", "x"), 0u);
}

TEST(ByteSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "GB", "-1GB", "1XB", "1 G B", "nan", "inf", "1e300", "99999999999PB", "1GB2", "0x10", "1,000"}) {
    EXPECT_THROW(parse_size(text, "--device-memory"), Error) << text;
  }
}

TEST(ByteSize, Writes) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(890), "890 B");
  EXPECT_EQ(size_text(2906112), "2.91 MB");
  EXPECT_EQ(size_text(999'999), "1.00 MB");
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(510286023000u), "510,286,023,000");
}

}  // namespace
}  // namespace mdi
