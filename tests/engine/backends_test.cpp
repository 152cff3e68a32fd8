// Two backends against each other: what is pooled over a folder, what one side alone selects, and a backend that is the
// oracle itself.
#include "engine/golden/backends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "engine/golden/backend_layers.h"
#include "engine/golden/backend_selections.h"
#include "engine/golden/model.h"
#include "kernels/cpu/backend.h"

namespace mdi::golden {
namespace {

std::vector<bf16> scores(const std::vector<float>& values) {
  std::vector<bf16> out;
  out.reserve(values.size());
  for (const float v : values) out.push_back(to_bf16(v));
  return out;
}

OneSided judged(const std::vector<int32_t>& found, const std::vector<int32_t>& expected,
                const std::vector<float>& values) {
  const std::vector<bf16> s = scores(values);
  return one_sided(found, expected, s, 2);
}

TEST(OneSided, EqualListsHaveNone) { EXPECT_EQ(judged({0, 2}, {0, 2}, {3, 1, 2}).entries, 0); }

TEST(OneSided, OneRoundingFromTheThresholdIsExcused) {
  const OneSided tie = judged({0, 1}, {0, 2}, {3, 2, 2});
  EXPECT_EQ(tie.entries, 2);
  EXPECT_EQ(tie.unexcused, 0);
  EXPECT_EQ(tie.steps, 0);
  const OneSided near = judged({0, 1}, {0, 2}, {3, 2, 2.015625f});  // one step of bf16 above 2
  EXPECT_EQ(near.unexcused, 0);
  EXPECT_EQ(near.steps, 1);
}

TEST(OneSided, TwoRoundingsAreNot) {
  const OneSided far = judged({0, 1}, {0, 2}, {3, 2, 2.03125f});
  EXPECT_EQ(far.unexcused, 1);  // the entry below the threshold; the one that sets it is at distance 0
  EXPECT_EQ(far.steps, 2);
}

TEST(OneSided, AListThatIsNotFullHasNoChoice) {
  EXPECT_EQ(judged({0, -1}, {0, 1}, {3, 3, 3}).unexcused, 1);
  EXPECT_EQ(judged({0, 1}, {0, -1}, {3, 3, 3}).unexcused, 1);
}

TEST(OneSided, WhatTheOracleDidNotScoreHasNoExcuse) {
  EXPECT_EQ(judged({0, 7}, {0, 1}, {3, 3}).unexcused, 1);
  EXPECT_EQ(judged({0, 2}, {0, 1}, {3, 3, std::numeric_limits<float>::quiet_NaN()}).unexcused, 1);
}

TEST(OneSided, StepsCrossZero) {
  EXPECT_EQ(bf16_steps(bf16{0x0001}, bf16{0x8001}), 2);
  EXPECT_EQ(bf16_steps(bf16{0x0000}, bf16{0x8000}), 0);
  EXPECT_EQ(bf16_steps(to_bf16(1.0f), to_bf16(1.0078125f)), 1);
}

const Quantity& quantity(const Report& report, const std::string& name) {
  const auto found = std::find_if(report.quantities().begin(), report.quantities().end(),
                                  [&](const Quantity& q) { return q.name == name; });
  EXPECT_NE(found, report.quantities().end()) << name;
  return *found;
}

// Two prompts of ten logits: one on which the oracle is exact and the other backend is not, and one that lies further
// from the stored logits than the backends from each other.
FolderDifference folder(double difference) {
  FolderDifference f;
  f.squares = f.all_squares = 20 * difference * difference;
  f.stored_squares = 20 * 0.01 * 0.01;
  f.logits = f.all_logits = 20;
  f.rows = {{.margin = 1, .same = true, .where = "a row 0"}, {.margin = 0.05, .same = false, .where = "b row 3"}};
  return f;
}

TEST(Folder, TwiceTheOraclesDistanceIsAllowed) {
  for (const auto& [difference, verdict] : {std::pair{0.0199, Verdict::kPass}, {0.0201, Verdict::kFail}}) {
    Report report;
    report_folder(folder(difference), "x/", report);
    EXPECT_EQ(quantity(report, "x/backends.logits").verdict, verdict) << difference;
  }
}

TEST(Folder, ARowWithAClearMarginMustBeTheSame) {
  // Four times the difference is 0.08 or 0.04: the second row's margin of 0.05 is clear in the latter case alone.
  for (const auto& [difference, verdict] : {std::pair{0.02, Verdict::kPass}, {0.01, Verdict::kFail}}) {
    Report report;
    report_folder(folder(difference), "x/", report);
    const Quantity& q = quantity(report, "x/backends.argmax");
    EXPECT_EQ(q.verdict, verdict) << difference;
    EXPECT_EQ(q.note.find("b row 3") != std::string::npos, verdict == Verdict::kFail);
  }
}

TEST(Folder, NotANumberFails) {
  Report report;
  report_folder(folder(std::numeric_limits<double>::quiet_NaN()), "x/", report);
  EXPECT_EQ(quantity(report, "x/backends.logits").verdict, Verdict::kFail);
}

TEST(Backends, TheOracleAgainstItself) {
  const auto dir = std::filesystem::path(MDI_SOURCE_DIR) / "tests/data/golden/tiny-vision";
  const auto oracle = make_cpu_context(1), other = make_cpu_context(2);
  Report report;
  check_checkpoint(dir, "v/", *oracle, other.get(), report);
  EXPECT_EQ(report.count(Verdict::kFail), 0);
  EXPECT_EQ(quantity(report, "v/backends.logits").largest, 0);
  EXPECT_EQ(quantity(report, "v/backends.logits").verdict, Verdict::kPass);
  for (const char* prompt : {"v/image_prompt0/", "v/image_prompt1/"}) {
    EXPECT_EQ(quantity(report, std::string(prompt) + "backends.first").tolerance, "no stage differs");
    EXPECT_EQ(quantity(report, std::string(prompt) + "backends.decode").largest, 0);
    const Quantity& q = quantity(report, std::string(prompt) + "backends.selections");
    EXPECT_EQ(q.verdict, Verdict::kPass);
    EXPECT_EQ(q.mean, 0);
  }
}

}  // namespace
}  // namespace mdi::golden
