#include "engine/stop_strings.h"

#include <gtest/gtest.h>

namespace mdi {
namespace {

// What is shown of `text`, pushed in pieces of `size` bytes.
std::string shown(const std::vector<std::string>& stops, const std::string& text, size_t size) {
  StopStrings filter(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += size) out += filter.push(text.substr(at, size));
  if (!filter.stopped()) out += filter.finish();
  return out;
}

TEST(StopStrings, TheSameAtEverySplit) {
  const struct {
    std::vector<std::string> stops;
    const char *text, *expected;
  } cases[] = {
      {{"END"}, "some text END more", "some text "},
      {{"END"}, "EN ENEND", "EN EN"},
      {{"END"}, "nothing E EN", "nothing E EN"},
      {{"aab"}, "aaaab", "aa"},
      {{"longer stop", "stop"}, "a longer stop", "a "},
      {{"xyz", "y"}, "wxyz", "wx"},
      {{""}, "empty is ignored", "empty is ignored"},
      {{}, "none", "none"},
      {{"a"}, "abc", ""},
  };
  for (const auto& c : cases) {
    for (size_t size = 1; size <= 20; ++size) EXPECT_EQ(shown(c.stops, c.text, size), c.expected) << c.text << size;
  }
}

TEST(StopStrings, NothingAfterAStop) {
  StopStrings filter({"x"});
  EXPECT_EQ(filter.push("axb"), "a");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.found(), "x");
  EXPECT_EQ(filter.push("c"), "");
}

}  // namespace
}  // namespace mdi
