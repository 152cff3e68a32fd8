#include "text/ordered_json.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace mdi {
namespace {

TEST(OrderedJson, IsSpelledAsPythonDoes) {
  // Left as read, right as json.dumps(json.loads(left), ensure_ascii=False) prints it.
  const std::pair<const char*, const char*> cases[] = {
      {R"({"b":1,"a":[true,false,null],"é":"\u00e9\u001f\"\\\/\b\f\n\r\t\u007f"})",
       "{\"b\": 1, \"a\": [true, false, null], \"é\": \"é\\u001f\\\"\\\\/\\b\\f\\n\\r\\t\x7f\"}"},
      {"[]", "[]"},
      {"{}", "{}"},
      {"[1.0,1e5,1.5e-7,0.0001,0.00001,123456789012345680.0,1e15,1e16,-0.0,-2.50,1e100,5e-324,0.1]",
       "[1.0, 100000.0, 1.5e-07, 0.0001, 1e-05, 1.2345678901234568e+17, 1000000000000000.0, 1e+16, -0.0, -2.5, 1e+100, "
       "5e-324, 0.1]"},
      {"[18446744073709551615,-9223372036854775808,-0,123456789012345678901234567890]",
       "[18446744073709551615, -9223372036854775808, 0, 123456789012345678901234567890]"},
      {R"({"a":1,"b":2,"a":{"c":3}})", R"({"a": {"c": 3}, "b": 2})"},
  };
  for (const auto& [text, python] : cases) EXPECT_EQ(python_json(parse_ordered_json(text, "test")), python);
}

TEST(OrderedJson, ManyKeysTakeLinearTime) {
  std::string text = "{", python = "{";
  for (int i = 0; i < 100000; ++i) {
    const std::string key = '"' + std::to_string(i) + '"';
    if (i > 0) {
      text += ',';
      python += ", ";
    }
    text += key + ":0";
    python += key + (i == 50 ? ": 1" : ": 0");
  }
  text += ",\"50\":1}";
  EXPECT_EQ(python_json(parse_ordered_json(text, "test", {size_t{4} << 20, 4})), python + "}");
}

TEST(OrderedJson, CopiesAreEqualAndTreesDissolve) {
  const char* text = R"({"b":[1,[2.5,{"c":null}],"x",123456789012345678901234567890],"a":{"d":{},"e":[]},"f":true})";
  OrderedJson tree = parse_ordered_json(text, "test");
  JsonTree copy(copy_json(tree));
  EXPECT_EQ(*copy, tree);
  EXPECT_EQ(python_json(*copy), python_json(tree));
  (*copy)["b"][1] = 7;
  EXPECT_NE(*copy, tree);
  dissolve(tree);
  EXPECT_TRUE(tree.is_null());
  EXPECT_EQ(copy.take()["b"][1], 7);
  EXPECT_TRUE(copy->is_null());
}

TEST(OrderedJson, RefusesDepthAndNonsense) {
  for (const char* text : {"", "{", "[1,]", "[[[[[1]]]]]", "\"\\ud800\"", "NaN", "1e999", "[1] 2"}) {
    EXPECT_THROW(parse_ordered_json(text, "test", {1000, 4}), Error) << text;
  }
}

}  // namespace
}  // namespace mdi
