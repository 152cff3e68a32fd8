// The measures and the excuse of a selection, which every check rests on.
#include "engine/golden/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "engine/golden/report.h"
#include "engine/golden/selection.h"

namespace mdi::golden {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool passes(const std::vector<float>& found, const std::vector<float>& expected, const Tolerances& tolerances,
            int64_t row = 0) {
  return compare("x", view(found), view(expected), tolerances, row).verdict == Verdict::kPass;
}

TEST(Compare, ExactCountsEveryDifferentElement) {
  EXPECT_TRUE(passes({1, -0.0f, kInfinity}, {1, 0, kInfinity}, {{Rule::kExact, 0}}));
  EXPECT_FALSE(passes({1, 2, 3}, {1, 2, 4}, {{Rule::kExact, 0}}));
  EXPECT_FALSE(passes({kInfinity}, {-kInfinity}, {{Rule::kExact, 0}}));
  EXPECT_FALSE(passes({kNan}, {0}, {{Rule::kExact, 0}}));
  EXPECT_FALSE(passes({0}, {kNan}, {{Rule::kExact, 0}}));
}

TEST(Compare, NoToleranceForgivesWhatIsNotANumber) {
  for (const Rule rule :
       {Rule::kUlp, Rule::kAbsolute, Rule::kRowLargest, Rule::kRelative, Rule::kMedianRow, Rule::kOutlier}) {
    EXPECT_FALSE(passes({kNan, 1}, {1, 1}, {{rule, 1e30}})) << static_cast<int>(rule);
    EXPECT_FALSE(passes({kInfinity, 1}, {1, 1}, {{rule, 1e30}})) << static_cast<int>(rule);
    EXPECT_FALSE(passes({1, 1}, {-kInfinity, 1}, {{rule, 1e30}})) << static_cast<int>(rule);
    EXPECT_TRUE(passes({-kInfinity, 1}, {-kInfinity, 1}, {{rule, 0}})) << static_cast<int>(rule);
  }
}

TEST(Compare, UlpsAreBf16Steps) {
  EXPECT_TRUE(passes({1.0078125f, 100}, {1, 100}, {{Rule::kUlp, 1}}));
  EXPECT_FALSE(passes({1.015625f, 100}, {1, 100}, {{Rule::kUlp, 1}}));
  EXPECT_TRUE(passes({0x1p-20f, 100}, {-0x1p-20f, 100}, {{Rule::kUlp, 1}})) << "far below the row's largest value";
}

TEST(Compare, RowsAreMeasuredByThemselves) {
  // Rows of two: rel 0, 0, 0.5.
  const std::vector<float> expected = {3, 4, 3, 4, 6, 8}, found = {3, 4, 3, 4, 9, 12};
  const TensorView e = view(expected, {3, 2}), f = view(found, {3, 2});
  EXPECT_DOUBLE_EQ(measure(Rule::kMedianRow, f, e), 0);
  EXPECT_NEAR(measure(Rule::kRelative, f, e), 5 / std::sqrt(150.0), 1e-12);
  EXPECT_DOUBLE_EQ(measure(Rule::kRowLargest, f, e), 0.5);
  EXPECT_NEAR(measure(Rule::kOutlier, f, e), 4 / std::sqrt(25.0), 1e-12);
  EXPECT_DOUBLE_EQ(measure(Rule::kMedianRow, f, e, 6), measure(Rule::kRelative, f, e));
  EXPECT_DOUBLE_EQ(measure(Rule::kSameArgmax, f, e), 1);
}

TEST(Compare, AnotherNumberOfElementsIsAnError) {
  const std::vector<float> two = {1, 2}, three = {1, 2, 3};
  EXPECT_THROW(compare("x", view(two), view(three), {{Rule::kRelative, 1}}), Error);
}

TEST(Compare, NothingAtAllIsEqual) {
  EXPECT_TRUE(
      passes({}, {}, {{Rule::kMedianRow, 0}, {Rule::kRelative, 0}, {Rule::kOutlier, 0}, {Rule::kSameArgmax, 1}}));
}

Verdict select(const std::vector<int32_t>& found, const std::vector<int32_t>& expected, float margin, float moved) {
  return compare_selections("x", found, expected, static_cast<int64_t>(expected.size()), {{margin}, {moved}}, 0.0)
      .verdict;
}

TEST(Selection, AnotherChoiceNeedsACloseMargin) {
  EXPECT_EQ(select({1, 2, 5}, {1, 2, 5}, 0.5f, 0), Verdict::kPass);
  EXPECT_EQ(select({1, 2, 6}, {1, 2, 5}, 0.5f, 0.3f), Verdict::kPass);
  EXPECT_EQ(select({1, 2, 6}, {1, 2, 5}, 0.5f, 0.2f), Verdict::kFail);
  EXPECT_EQ(select({1, 2, 6}, {1, 2, 5}, kInfinity, 100), Verdict::kFail) << "there was no choice";
  EXPECT_EQ(select({1, 2, 6}, {1, 2, 5}, 0, 0), Verdict::kFail) << "a tie of equal scores has one answer";
  EXPECT_EQ(select({2, 1, 5}, {1, 2, 5}, 0, 1), Verdict::kFail) << "another order is no other choice";
}

TEST(Selection, ShareOfWhatIsFoundAgain) {
  const std::vector<int32_t> expected = {1, 2, 1, 2}, half = {3, 4, 1, 2}, none = {3, 4, 3, 4};
  const Freedom free = Freedom::unknown(2);
  EXPECT_EQ(compare_selections("x", half, expected, 2, free, 0.5).verdict, Verdict::kPass);
  EXPECT_EQ(compare_selections("x", none, expected, 2, free, 0.5).verdict, Verdict::kFail);
  EXPECT_EQ(compare_selections("x", half, expected, 2, free, 0.9).verdict, Verdict::kPass)
      << "one row of few may differ";
}

TEST(Report, NamesAreWantedFromTheirStartOrBehindASlash) {
  Report report;
  EXPECT_TRUE(report.wants("ops/gate.case0.out"));
  report.only = {"gate", "tiny-text/prompt1"};
  EXPECT_TRUE(report.wants("ops/gate.case0.out"));
  EXPECT_TRUE(report.wants("tiny-text/prompt1/prefill.logits"));
  EXPECT_FALSE(report.wants("x/tiny-text/prompt1/prefill.logits"));
  EXPECT_FALSE(report.wants("tiny-text/prompt0/prefill.logits"));
  report.only = {"tiny-text/prompt1/fed."};
  EXPECT_TRUE(report.may_want("tiny-text/"));
  EXPECT_TRUE(report.may_want("tiny-text/prompt1/fed.layers.3"));
  EXPECT_FALSE(report.may_want("tiny-text/prompt1/prefill."));
}

TEST(Report, NothingCheckedIsNotPassed) {
  Report report;
  EXPECT_FALSE(report.passed());
  report.skip("a", "not built");
  EXPECT_FALSE(report.passed());
  report.add({.name = "b", .verdict = Verdict::kPass, .tolerance = {}, .note = {}});
  EXPECT_TRUE(report.passed());
  report.fail("c", "wrong");
  EXPECT_FALSE(report.passed());
  EXPECT_NE(report_json(report).find("\"failed\": 1"), std::string::npos);
}

}  // namespace
}  // namespace mdi::golden
