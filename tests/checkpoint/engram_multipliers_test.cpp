// The values that spec engram.md section 3 lists, and those of the golden checkpoints.
#include "checkpoint/engram_multipliers.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace mdi {
namespace {

using Row = std::vector<int64_t>;

TEST(EngramMultipliers, ReleasedModel) {
  ModelConfig config;
  config.engram_layer_ids = {1, 14};
  config.engram_compressed_vocab_size = 99092;
  config.engram_max_ngram_size = 4;
  const auto m = engram_multipliers(config);
  ASSERT_EQ(m.size(), 2u);
  EXPECT_EQ(m[0], (Row{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(m[1], (Row{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramMultipliers, GoldenTinyText) {
  EXPECT_EQ(engram_layer_multipliers(1, 300, 4),
            (Row{25312092204715445, 1598643339462077, 11877719498229879, 24438510811423417}));
  EXPECT_EQ(engram_layer_multipliers(4, 300, 4),
            (Row{27171098617865603, 1664016290499501, 24328227015100263, 6260917600735559}));
}

TEST(EngramMultipliers, OtherNgramSizesAreThePrefixOrContinueTheSameStream) {
  const Row four = engram_layer_multipliers(14, 99092, 4);
  EXPECT_EQ(engram_layer_multipliers(14, 99092, 2), Row(four.begin(), four.begin() + 2));
  const Row eight = engram_layer_multipliers(14, 99092, 8);
  EXPECT_EQ(Row(eight.begin(), eight.begin() + 4), four);
  EXPECT_TRUE(engram_layer_multipliers(14, 99092, 0).empty());
}

TEST(EngramMultipliers, OddAndNeverOverflowing) {
  for (const int64_t compressed : {int64_t{1}, int64_t{2}, int64_t{300}, int64_t{99092}, int64_t{1} << 29}) {
    for (const int64_t m : engram_layer_multipliers(3, compressed, 16)) {
      EXPECT_EQ(m & 1, 1);
      EXPECT_GT(m, 0);
      EXPECT_LE(m, std::numeric_limits<int64_t>::max() / compressed);
    }
  }
}

TEST(EngramMultipliers, SizesOutsideTheAlgorithmAreRefused) {
  EXPECT_THROW(engram_layer_multipliers(1, 0, 4), Error);
  EXPECT_THROW(engram_layer_multipliers(1, -5, 4), Error);
  EXPECT_THROW(engram_layer_multipliers(1, int64_t{1} << 30, 4), Error);
  EXPECT_THROW(engram_layer_multipliers(-1, 300, 4), Error);
  EXPECT_THROW(engram_layer_multipliers(500000, 300, 4), Error);
}

}  // namespace
}  // namespace mdi
