#include "core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace mdi {
namespace {

std::string error_of(std::string_view text, JsonLimits limits = {}) {
  try {
    parse_json(text, "file.json", limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Json, ReadsWhatJsonAllows) {
  const auto value = parse_json(R"( {"a":[1,-2,3.5,true,null,{}],"b":{"c":"d\u00e9"}} )", "x");
  EXPECT_EQ(value["a"].size(), 6u);
  EXPECT_EQ(value["a"][1].get<int>(), -2);
  EXPECT_TRUE(value["a"][2].is_number_float());
  EXPECT_EQ(value["b"]["c"].get<std::string>(), "d\xC3\xA9");
  EXPECT_EQ(parse_json("18446744073709551615", "x").get<uint64_t>(), UINT64_MAX);
}

TEST(Json, RefusesWithOneClearLine) {
  const std::string deep(100, '[');
  const struct {
    std::string text, words;
  } cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"{} x", "not valid JSON"},
      {"{}{}", "not valid JSON"},
      {std::string("{}\0[", 4), "zero byte"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {"\"\xFF\"", "not valid JSON"},
      {"\"\xC0\x80\"", "not valid JSON"},
      {R"("\ud800")", "not valid JSON"},
      {"\"a\nb\"", "not valid JSON"},
      {"NaN", "not valid JSON"},
      {"[1,]", "not valid JSON"},
      {"01", "not valid JSON"},
      {"1e999", "not valid JSON"},
      {"18446744073709551616", "does not fit 64 bits"},
      {"-9223372036854775809", "does not fit 64 bits"},
      {R"({"a":1,"b":{"a":2},"a":3})", "key 'a' appears twice"},
      {R"([{"k\u0061y":1,"kay":2}])", "key 'kay' appears twice"},
      {deep, "nested deeper than 32"},
      {std::string(2 << 20, ' '), "2097152 bytes, more than the 1048576"},
  };
  for (const auto& c : cases) {
    const std::string error = error_of(c.text);
    EXPECT_EQ(error.find("file.json: "), 0u) << error;
    EXPECT_NE(error.find(c.words), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LT(error.size(), 500u);
  }
}

TEST(Json, EveryValueCounts) {
  JsonLimits limits;
  limits.max_values = 9;
  EXPECT_EQ(error_of(R"({"a":[1,-1,1.5,true,null,"x",{}]})", limits), "no error");
  EXPECT_EQ(error_of(R"({"a":[1,-1,1.5,true,null,"x",{},0]})", limits), "file.json: more than 9 JSON values");
  EXPECT_EQ(error_of(R"({"a":[1,-1,1.5,true,null,"x",[[]]]})", limits), "file.json: more than 9 JSON values");
}

TEST(Json, DepthLimitIsExact) {
  EXPECT_EQ(error_of("[[[]]]", {.max_depth = 3}), "no error");
  EXPECT_NE(error_of("[[[[]]]]", {.max_depth = 3}), "no error");
  EXPECT_EQ(error_of(R"([[],[],[],{"a":{}}])", {.max_depth = 3}), "no error");
}

}  // namespace
}  // namespace mdi
