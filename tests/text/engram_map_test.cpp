#include "text/engram_map.h"

#include <gtest/gtest.h>

#include <sstream>

#include "support.h"

namespace mdi {
namespace {

TEST(EngramMap, EqualsThePublishedMapInEveryLine) {
  const EngramMap map = engram_token_map(test::v41_tokenizer());
  EXPECT_EQ(map.count, 99092);
  EXPECT_EQ(map.ids[2], 2);  // the pad token, which stands for what is before the start
  std::istringstream lines(test::read_file(test::unpacked_path("engram_map_v41.txt")));
  std::vector<int32_t> expected;
  for (int32_t id; lines >> id;) expected.push_back(id);
  EXPECT_EQ(expected.size(), 129280u);
  EXPECT_EQ(map.ids, expected);
}

}  // namespace
}  // namespace mdi
