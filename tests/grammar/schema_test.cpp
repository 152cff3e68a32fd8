// JSON Schemas: what they allow is valid (random answers, checked by another validator), what they ask for is allowed.
#include <gtest/gtest.h>

#include "core/error.h"
#include "validate.h"
#include "walk.h"

namespace mdi {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<const char*> allowed, forbidden;  // JSON texts
};

const std::vector<SchemaCase>& cases() {
  static const std::vector<SchemaCase> kCases = {
      {R"({"type":"string"})",
       {R"("")", R"("a\nb\"\\")", R"("\ud83d\ude00 é 漢")"},
       {"3", "\"a", "\"\t\"", R"("\ud83d")"}},
      {R"({"type":"integer"})", {"0", "-17", "123456789012345678"}, {"1.5", "01", "-", "1e3"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e10", "3.25E-7"}, {".5", "1.", "NaN", "+1"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "True"}},
      {R"({"type":"null"})", {"null"}, {"0", "\"null\""}},
      {R"({"type":["string","null"]})", {"\"x\"", "null"}, {"1"}},
      {R"({"enum":["a","b c",1,2.5,null,true,["x",1],{"k":"v"}]})",
       {"\"a\"", "\"b c\"", "1", "2.5", "null", "true", R"(["x", 1])", R"({"k": "v"})"},
       {"\"c\"", "2", "false"}},
      {R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
      {R"({"const":"exactly\nthis"})", {R"("exactly\nthis")"}, {"\"other\""}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},
          "required":["b"],"additionalProperties":false})",
       {R"({"b":"x"})", R"({"a": 1, "b": "x", "c": null})", "{\n  \"b\": \"x\",\n  \"c\": null\n}"},
       {"{}", R"({"a":1})", R"({"b":"x","d":1})", R"({"b":"x","b":"y"})", R"({"b":1})"}},
      {R"({"type":"object","properties":{},"additionalProperties":false})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"},"a":{"type":"integer"}},
          "additionalProperties":{"type":"string"}})",
       {"{}", R"({"ab":1})", R"({"ab":1,"x":"y","abc":"z","":"e"})", R"({"zzz":"y"})"},
       {R"({"ab":"x"})", R"({"x":1})", R"({"a":"x"})", R"({"\u0061":"x"})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2,"minProperties":1})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"x":1,"y":2,"z":3})", R"({"x":"1"})"}},
      {R"({"type":"object","patternProperties":{"^x-[a-z]+$":{"type":"boolean"}},"additionalProperties":false})",
       {"{}", R"({"x-a":true,"x-bc":false})"},
       {R"({"y":true})", R"({"x-a":1})"}},
      {R"({"type":"object","required":["free"],"properties":{"a":{"type":"integer"}}})",
       {R"({"free":[1,"x"]})", R"({"a":1,"free":null})"},
       {R"({"a":1})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1, 2, 3]"},
       {"[1]", "[1,2,3,4]", "[]", "[1,\"2\"]"}},
      {R"({"type":"array","items":{"type":"string"}})", {"[]", "[ ]", R"(["a","b"])"}, {"[1]", "[\"a\",]"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"boolean"},"minItems":1})",
       {R"(["a"])", R"(["a",1])", R"(["a",1,true,false])"},
       {"[]", "[1]", R"(["a",true])", R"(["a",1,2])"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"maxItems":1})",
       {"[]", R"(["a"])"},
       {R"(["a",1])"}},
      {R"({"anyOf":[{"type":"string","maxLength":3},{"type":"integer"},{"type":"null"}]})",
       {"\"abc\"", "7", "null"},
       {"\"abcd\"", "true"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"circle"},"r":{"type":"number"}},"required":["k","r"],
            "additionalProperties":false},{"type":"object","properties":{"k":{"const":"box"},"w":{"type":"number"}},
            "required":["k","w"],"additionalProperties":false}]})",
       {R"({"k":"circle","r":1.5})", R"({"k":"box","w":2})"},
       {R"({"k":"circle","w":1})"}},
      {R"({"allOf":[{"$ref":"#/definitions/P"}],"definitions":{"P":{"type":"integer","minimum":3}}})",
       {"3", "400"},
       {"2"}},
      {R"({"type":"object","properties":{"value":{"type":"integer"},"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
          "required":["value","next"],"additionalProperties":false})",
       {R"({"value":1,"next":null})", R"({"value":1,"next":{"value":2,"next":null}})"},
       {R"({"value":1})", R"({"value":1,"next":{"value":2}})"}},
      {R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"array","prefixItems":[{"$ref":"#/$defs/t"},
          {"$ref":"#/$defs/a~1b/prefixItems/0"}],"items":false,"minItems":2},"t":{"enum":[1]}}})",
       {"[1,1]"},
       {"[1,2]", "[1]"}},
      {R"({"type":"string","pattern":"^[a-c]{2,3}-\\d+$"})", {"\"ab-1\"", "\"abc-42\""}, {"\"a-1\"", "\"ab-\""}},
      {R"({"type":"string","pattern":"[0-9]{3}"})", {"\"123\"", "\"x1234y\""}, {"\"12\"", "\"1x23\""}},
      {R"({"type":"string","pattern":"^(?:foo|ba(r|z))?$"})", {"\"\"", "\"foo\"", "\"baz\""}, {"\"bar \"", "\"ba\""}},
      {R"({"type":"string","pattern":"^\"[^\"]\\\\\\n$"})", {R"("\"x\\\n")"}, {R"("\"\"\\\n")"}},
      {R"({"type":"string","pattern":"^[é-ü]\\u263A.$"})", {"\"é☺x\""}, {"\"e☺x\"", "\"é☺\""}},
      {R"({"type":"string","minLength":2,"maxLength":4})", {"\"ab\"", "\"漢字😀x\""}, {"\"a\"", "\"abcde\""}},
      {R"({"type":"string","minLength":3})", {"\"abc\"", "\"abcdefgh\""}, {"\"ab\""}},
      {R"({"type":"string","maxLength":300})", {"\"\"", "\"some text\""}, {}},
      {R"({"type":"string","format":"date"})",
       {"\"2024-02-29\"", "\"1999-12-31\""},
       {"\"2023-02-29\"", "\"2023-13-01\"", "\"23-01-01\""}},
      {R"({"type":"string","format":"date-time"})",
       {"\"2024-05-06T07:08:09Z\"", "\"2024-05-06T07:08:09.5+02:00\""},
       {"\"2024-05-06\""}},
      {R"({"type":"string","format":"time"})", {"\"23:59:59Z\""}, {"\"24:00:00Z\""}},
      {R"({"type":"string","format":"duration"})", {"\"P1DT2H\"", "\"P3W\"", "\"PT5M\""}, {"\"P\"", "\"1D\""}},
      {R"({"type":"string","format":"email"})", {"\"a.b+c@example.org\""}, {"\"a@\"", "\"@b.c\""}},
      {R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
      {R"({"type":"string","format":"ipv4"})",
       {"\"127.0.0.1\"", "\"255.255.255.255\""},
       {"\"256.1.1.1\"", "\"1.2.3\""}},
      {R"({"type":"string","format":"ipv6"})", {"\"::1\"", "\"2001:db8::1\"", "\"::\""}, {"\"1::2::3\""}},
      {R"({"type":"string","format":"hostname"})", {"\"example.org\""}, {"\"-a.b\"", "\"\""}},
      {R"({"type":"string","format":"uri"})", {"\"https://example.org/a?b=c#d\""}, {"\"example\""}},
      {R"({"type":"integer","minimum":-3,"maximum":17})", {"-3", "0", "17"}, {"-4", "18", "170"}},
      {R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":6.5})", {"4", "6"}, {"3", "7"}},
      {R"({"type":"integer","minimum":1000})", {"1000", "123456"}, {"999", "-1000"}},
      {R"({"type":"integer","minimum":0,"maximum":100,"multipleOf":7})", {"0", "7", "98"}, {"1", "105"}},
      {R"({"type":"number","minimum":0.5,"maximum":2.25})", {"0.5", "1", "2.25", "1.7"}, {"0.4", "2.26", "-1", "22"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "5"}, {"0", "-1", "0.0"}},
      {R"({"properties":{"a":{}},"required":["a"]})", {R"({"a":[1,{"b":null}]})"}, {"{}", "1"}},
      {R"({"type":"object","properties":{"a":{"title":"A","description":"d","default":1,"type":"integer"}},
          "$schema":"https://json-schema.org/draft/2020-12/schema","title":"T","additionalProperties":false})",
       {R"({"a":1})", "{}"},
       {R"({"a":"1"})"}},
      {"true", {"[1]", "\"x\"", "{}"}, {"nope"}},
      {R"({"type":"object","properties":{"never":false,"a":{"type":"integer"}},"additionalProperties":false})",
       {R"({"a":1})", "{}"},
       {R"({"never":1})"}},
      {R"({"type":"object","properties":{"quote\"d":{"type":"integer"},"é":{"type":"integer"}},
          "required":["quote\"d","é"],"additionalProperties":false})",
       {R"({"quote\"d":1,"é":2})"},
       {R"({"quoted":1,"é":2})"}},
  };
  return kCases;
}

TEST(GrammarSchema, AllowsWhatItAsksForAndNothingElse) {
  for (const SchemaCase& c : cases()) {
    Mask mask(schema_spec(c.schema));
    for (const char* text : c.allowed) EXPECT_TRUE(allows(mask, text)) << c.schema << "\n  " << text;
    for (const char* text : c.forbidden) EXPECT_FALSE(allows(mask, text)) << c.schema << "\n  " << text;
  }
}

// Whatever is drawn from the masks is valid.
TEST(GrammarSchema, RandomAnswersAreValid) {
  std::mt19937_64 random(20260701);
  ValidatedAnswers answers;
  size_t unfinished = 0;
  for (const SchemaCase& c : cases()) {
    Mask mask(schema_spec(c.schema));
    for (int i = 0; i < (kPace > 1 ? 2 : 6); ++i) {  // a walk takes seconds under a sanitizer
      const auto generated = walk(mask, random);
      unfinished += generated ? 0 : 1;
      if (generated) answers.add(c.schema, parse_answer(*generated).content);
    }
  }
  EXPECT_LT(unfinished, answers.size() / 4);
  answers.check("schema");
}

TEST(GrammarSchema, RandomObjectsAreObjects) {
  std::mt19937_64 random(7);
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kJsonObject;
  Mask mask(spec);
  EXPECT_TRUE(allows(mask, R"({"a": {"b": [1, "two", null]}})"));
  EXPECT_FALSE(allows(mask, "[1]"));
  EXPECT_FALSE(allows(mask, "{} {}"));
  ValidatedAnswers answers;
  for (int i = 0; i < 40; ++i) {
    if (const auto generated = walk(mask, random))
      answers.add(R"({"type":"object"})", parse_answer(*generated).content);
  }
  EXPECT_GT(answers.size(), 20u);
  answers.check("object");
}

// The keyword, and where it is.
std::string refusal(const std::string& schema, bool strict = true) {
  try {
    full_compiler().compile(schema_spec(schema, strict));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GrammarSchema, StrictNamesWhatItCannotFollow) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type":"object","properties":{"a":{"not":{"type":"string"}}}})",
       "response_format/properties/a/not: the keyword 'not' is not supported"},
      {R"({"type":"array","uniqueItems":true})", "response_format/uniqueItems: the keyword 'uniqueItems'"},
      {R"({"type":"string","pattern":"a","minLength":3})", "/minLength: the keyword 'minLength'"},
      {R"({"type":"string","pattern":"(?=a)b"})", "response_format/pattern: at character 2 of the pattern: look-ahead"},
      {R"({"type":"string","pattern":"(a)\\1"})", "the escape \\1 is not supported"},
      {R"({"type":"string","format":"color"})", "the format 'color' is not supported"},
      {R"({"type":"number","multipleOf":0.1})", "/multipleOf"},
      {R"({"anyOf":[{"type":"string"}],"minLength":1})", "/minLength: the keyword 'minLength' is not supported beside"},
      {R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})", "/oneOf"},
      {R"({"allOf":[{"type":"string"},{"maxLength":3}]})", "/allOf"},
      {R"({"type":"object","properties":{"a":{}},"minProperties":1})", "/minProperties"},
      {R"({"if":{"type":"string"},"then":{}})", "response_format/if"},
  };
  for (const auto& [schema, expected] : refused) {
    EXPECT_NE(refusal(schema).find(expected), std::string::npos) << schema << "\n  " << refusal(schema);
    EXPECT_EQ(refusal(schema, false), "") << schema;  // passed over without strict
  }
}

TEST(GrammarSchema, WhatIsNoSchemaIsRefused) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type":"strin"})", "response_format/type: expected a JSON type's name, found \"strin\""},
      {R"({"type":"object","properties":[]})", "response_format/properties: expected an object"},
      {R"({"type":"array","items":3})", "response_format/items: expected a schema, found number"},
      {R"({"enum":[]})", "response_format/enum: expected a list of at least one value"},
      {R"({"$ref":"#/nowhere"})", "nothing is at '#/nowhere'"},
      {R"({"$ref":"https://example.org/schema"})", "expected '#' or '#/...'"},
      {R"({"type":"array","minItems":-1})", "response_format/minItems: expected a whole number"},
      {R"({"type":)", "response_format"},
      {"[]", "expected a schema, found array"},
      {"false", "nothing can satisfy it"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "nothing can satisfy it"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "nothing can satisfy it"},
      {R"({"$ref":"#"})", "nothing can satisfy it"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself with nothing in between"},
  };
  for (const auto& [schema, expected] : refused) {
    for (const bool strict : {true, false}) {
      EXPECT_NE(refusal(schema, strict).find(expected), std::string::npos)
          << schema << "\n  " << refusal(schema, strict);
    }
  }
}

}  // namespace
}  // namespace mdi
