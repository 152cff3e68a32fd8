// Tool calls: what the grammar allows is what ChatParser reads back, with arguments that the tools' schemas allow.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "../pace.h"
#include "core/error.h"
#include "validate.h"
#include "walk.h"

namespace mdi {
namespace {

constexpr const char* kWeather = R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer",
  "minimum":1,"maximum":14},"unit":{"enum":["c","f",3,null]},"note":{"type":["string","null"]}},
  "required":["city","unit"],"additionalProperties":false})";
constexpr const char* kNested = R"({"type":"object","properties":{"where":{"$ref":"#/$defs/place"},
  "tags":{"type":"array","items":{"type":"string"},"maxItems":2},"code":{"type":"string","pattern":"^[A-Z]{2}-\\d+$"},
  "short":{"type":"string","minLength":1,"maxLength":4},"any":{},"day":{"type":"string","format":"date"}},
  "required":["where","code"],"additionalProperties":false,"$defs":{"place":{"anyOf":[{"type":"string","const":"here"},
  {"type":"object","properties":{"x":{"type":"number"},"in":{"$ref":"#/$defs/place"}},"required":["x"],
  "additionalProperties":false}]}}})";
constexpr const char* kNothing = R"({"type":"object","properties":{},"additionalProperties":false})";

GrammarSpec tools_spec(GrammarSpec::ToolChoice choice) {
  GrammarSpec spec;
  spec.tool_choice = choice;
  spec.tools = {
      {"get_weather", kWeather, true}, {"nested", kNested, true}, {"nothing", kNothing, true}, {"loose", "", false}};
  return spec;
}

const std::map<std::string, std::string>& schemas() {
  static const std::map<std::string, std::string> kSchemas = {
      {"get_weather", kWeather}, {"nested", kNested}, {"nothing", kNothing}, {"loose", R"({"type":"object"})"}};
  return kSchemas;
}

// Text with the marker spelled out, its token in it.
std::vector<int32_t> tokens_of(const std::string& text) { return full_tokenizer().encode(text); }

bool accepts(Mask& mask, const std::string& text) {
  std::vector<int32_t> before;
  std::vector<int32_t> ids = tokens_of(text);
  ids.push_back(eos_token());
  for (const int32_t id : ids) {
    mask(before);
    if (!bit(mask.bits, id)) return false;
    before.push_back(id);
  }
  return true;
}

std::string parameter(const std::string& name, const std::string& value, bool is_string) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</｜DSML｜ parameter>\n";
}
std::string call(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + (parameters.empty() ? "\n" : parameters) +
         "</｜DSML｜ invoke>\n";
}
std::string block(const std::string& calls) { return "\n\n<｜DSML｜ calls>\n" + calls + "</｜DSML｜ calls>"; }

const std::string kGoodCall = call("get_weather", parameter("city", "Paris <b>\n", true) +
                                                      parameter("days", "3", false) + parameter("unit", "c", true));

// Walks, checked; returns how many of them called.
size_t check_walks(Mask& mask, std::mt19937_64& random, int walks, size_t least_calls, size_t most_calls,
                   ValidatedAnswers& answers) {
  size_t called = 0;
  for (int i = 0; i < walks; ++i) {
    const auto generated = walk(mask, random, 500);
    if (!generated) continue;
    const ChatReply reply = parse_answer(*generated);
    // A name that comes twice is skipped by the parser; only the loose tool allows it.
    if (reply.problem != "two parameters of one name") {
      EXPECT_EQ(reply.problem, "") << full_tokenizer().decode(*generated);
    }
    EXPECT_TRUE(reply.complete);
    EXPECT_GE(reply.tool_calls.size(), least_calls);
    EXPECT_LE(reply.tool_calls.size(), most_calls);
    for (const ToolCall& made : reply.tool_calls) {
      if (schemas().count(made.name) == 0) {
        ADD_FAILURE() << "no tool is named " << made.name;
        continue;
      }
      answers.add(schemas().at(made.name), made.arguments);
    }
    called += reply.tool_calls.empty() ? 0 : 1;
  }
  return called;
}

TEST(GrammarTools, RandomCallsAreReadBackAndValid) {
  const bool slow = kPace > 1;  // a walk takes seconds then
  const int walks = slow ? 8 : 40, named_walks = slow ? 2 : 12;
  std::mt19937_64 random(42);
  ValidatedAnswers answers;
  Mask required(tools_spec(GrammarSpec::ToolChoice::kRequired));
  EXPECT_GE(check_walks(required, random, walks, 1, 100, answers), static_cast<size_t>(walks) / 2);
  // Each tool by itself: a strict one's names are its own.
  for (const GrammarTool& tool : tools_spec(GrammarSpec::ToolChoice::kNamed).tools) {
    GrammarSpec named = tools_spec(GrammarSpec::ToolChoice::kNamed);
    named.tool_name = tool.name;
    Mask mask(named);
    check_walks(mask, random, named_walks, 1, 1, answers);
  }
  EXPECT_GT(answers.size(), static_cast<size_t>(walks));
  answers.check("tools");
}

TEST(GrammarTools, OneCallWhereCallsAreNotParallel) {
  GrammarSpec spec = tools_spec(GrammarSpec::ToolChoice::kRequired);
  EXPECT_TRUE(Mask(spec).function != nullptr);
  Mask many(spec);
  EXPECT_TRUE(accepts(many, block(kGoodCall)));
  EXPECT_TRUE(accepts(many, block(kGoodCall + call("nothing", ""))));
  spec.parallel = false;
  Mask one(spec);
  EXPECT_TRUE(accepts(one, block(kGoodCall)));
  EXPECT_FALSE(accepts(one, block(kGoodCall + call("nothing", ""))));
}

TEST(GrammarTools, AutoIsTextOrCalls) {
  Mask mask(tools_spec(GrammarSpec::ToolChoice::kAuto));
  EXPECT_TRUE(accepts(mask, ""));
  EXPECT_TRUE(accepts(mask, "Just text, with <tags> and\n\n<more."));
  EXPECT_TRUE(accepts(mask, "First this." + block(kGoodCall)));
  EXPECT_TRUE(accepts(mask, block(kGoodCall)));
  // The tool block is the end, its names are the tools', the marker comes only where the format puts it.
  EXPECT_FALSE(accepts(mask, "First this." + block(kGoodCall) + "More."));
  EXPECT_FALSE(accepts(mask, block(call("unknown", ""))));
  EXPECT_FALSE(accepts(mask, "a ｜DSML｜ in the text"));
  EXPECT_FALSE(accepts(mask, block(call("get_weather", parameter("city", "Paris", true)))));  // unit
  EXPECT_FALSE(accepts(mask, block(call("get_weather", parameter("city", "3", false)))));     // a string
  EXPECT_FALSE(accepts(mask, block(call("get_weather", parameter("town", "Paris", true)))));  // no such name
  EXPECT_TRUE(accepts(mask, block(call("loose", parameter("x", "[1, {\"a\": null}]", false)))));
  EXPECT_FALSE(accepts(mask, block(call("loose", parameter("x", "[1, {\"a\": nul}]", false)))));
  EXPECT_TRUE(accepts(mask, block(call("loose", ""))));
  EXPECT_TRUE(accepts(mask, block(call("loose", parameter("x", "</parameter> & \"text\"", true)))));
}

// Spelled out in other tokens, the marker is text for the grammar as it is for the parser.
TEST(GrammarTools, TheMarkerSpelledOutIsText) {
  Mask none(tools_spec(GrammarSpec::ToolChoice::kNone));
  EXPECT_TRUE(allows(none, "\n\n<｜DSML｜ calls>\n is how a call would begin"));
  EXPECT_FALSE(accepts(none, "\n\n<｜DSML｜ calls>\n"));
  Mask required(tools_spec(GrammarSpec::ToolChoice::kRequired));
  std::vector<int32_t> ids = tokens_of(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"loose\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">");
  const auto spelled = full_tokenizer().encode("</｜DSML｜ parameter>", Markers::kText);
  ids.insert(ids.end(), spelled.begin(), spelled.end());
  required(ids);
  EXPECT_FALSE(bit(required.bits, eos_token()));
  const auto end = tokens_of("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  ids.insert(ids.end(), end.begin(), end.end());
  EXPECT_EQ(required.allowed(ids), std::vector<int32_t>{eos_token()});
  const ChatReply reply = parse_answer(ids);
  EXPECT_EQ(reply.problem, "");
  EXPECT_EQ(nlohmann::json::parse(reply.tool_calls.at(0).arguments)["x"], "</｜DSML｜ parameter>");
}

TEST(GrammarTools, RequiredAndNamedCallAtOnce) {
  Mask required(tools_spec(GrammarSpec::ToolChoice::kRequired));
  EXPECT_FALSE(accepts(required, ""));
  EXPECT_FALSE(accepts(required, "First this." + block(kGoodCall)));
  EXPECT_TRUE(accepts(required, block(kGoodCall)));
  GrammarSpec spec = tools_spec(GrammarSpec::ToolChoice::kNamed);
  spec.tool_name = "get_weather";
  Mask named(spec);
  EXPECT_TRUE(accepts(named, block(kGoodCall)));
  EXPECT_FALSE(accepts(named, block(call("nothing", ""))));
}

// A response format and tools: the content follows the one, or the answer is a call.
TEST(GrammarTools, ContentFollowsItsSchemaOrTheAnswerIsACall) {
  GrammarSpec spec = tools_spec(GrammarSpec::ToolChoice::kAuto);
  spec.kind = GrammarSpec::Kind::kJsonSchema;
  spec.schema =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})";
  Mask mask(spec);
  EXPECT_TRUE(accepts(mask, R"({"a": 1})"));
  EXPECT_TRUE(accepts(mask, block(kGoodCall)));
  EXPECT_FALSE(accepts(mask, "text"));
  EXPECT_FALSE(accepts(mask, ""));
}

// Errors about a whole grammar name the member that a client has sent; a tool that can never be called is one, also
// beside others that can.
TEST(GrammarTools, ErrorsNameTheirSource) {
  const auto refusal = [](const GrammarSpec& spec) -> std::string {
    try {
      full_compiler().compile(spec);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string impossible = R"({"type":"object","properties":{"a":false},"required":["a"],)"
                                 R"("additionalProperties":false})";
  for (const auto choice : {GrammarSpec::ToolChoice::kAuto, GrammarSpec::ToolChoice::kRequired}) {
    GrammarSpec spec = tools_spec(choice);
    spec.tools.push_back({"never", impossible, true});
    EXPECT_EQ(refusal(spec), "tools[4] (never): nothing can satisfy it");
    spec.tools.back() = {"always", R"({"type":"object","required":["zz"]})", true};
    const std::string said = refusal(spec);
    EXPECT_EQ(said.find("tools[4] (always)/additionalProperties: expected false: "), 0u) << said;
    EXPECT_NE(said.find("'required'"), std::string::npos) << said;
  }
  GrammarSpec regex;
  regex.kind = GrammarSpec::Kind::kRegex;
  regex.pattern = "[]";
  EXPECT_EQ(refusal(regex), "regex: nothing can satisfy it");
  regex.pattern = "((a{100}){100}){100}";
  EXPECT_EQ(refusal(regex).find("regex: repetitions"), 0u) << refusal(regex);
  GrammarSpec schema = tools_spec(GrammarSpec::ToolChoice::kAuto);
  schema.kind = GrammarSpec::Kind::kJsonSchema;
  schema.schema = R"({"$ref":"#"})";
  EXPECT_EQ(refusal(schema), "response_format: nothing can satisfy it");
  GrammarSpec choice;
  choice.kind = GrammarSpec::Kind::kChoice;
  choice.choices.assign(2, std::string(200'000, 'x'));
  EXPECT_EQ(refusal(choice).find("choice: "), 0u) << refusal(choice);
  choice.choices.pop_back();
  EXPECT_EQ(refusal(choice).find("choice: too large"), 0u) << refusal(choice);
}

TEST(GrammarTools, WhatIsWrongWithAToolIsSaid) {
  const auto refusal = [](const GrammarSpec& spec) -> std::string {
    try {
      full_compiler().compile(spec);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  GrammarSpec spec = tools_spec(GrammarSpec::ToolChoice::kNamed);
  spec.tool_name = "other";
  EXPECT_EQ(refusal(spec), "tool_choice: no tool is named 'other'");
  spec = tools_spec(GrammarSpec::ToolChoice::kRequired);
  spec.tools.clear();
  EXPECT_EQ(refusal(spec), "tool_choice: expected at least one tool");
  spec.tools = {{"f", R"({"type":"object","properties":{"a":{"type":"string","format":"color"}}})", true}};
  EXPECT_EQ(refusal(spec), "tools[0] (f)/properties/a/format: the format 'color' is not supported");
  spec.tools[0].strict = false;
  EXPECT_EQ(refusal(spec), "");
  spec.tools = {{"f", R"({"type":"string"})", true}};
  EXPECT_NE(refusal(spec).find("expected the schema of an object"), std::string::npos);
  spec.tools = {{"f\"", "", false}};
  EXPECT_NE(refusal(spec).find("without quotes"), std::string::npos);
  spec.tools = {{"f", "", false}, {"f", "", false}};
  EXPECT_EQ(refusal(spec), "tools[1] (f): two tools of one name");
  spec.tools.assign(200, {"f", "", false});
  EXPECT_EQ(refusal(spec), "tools: expected at most 128 tools, found 200");
}

}  // namespace
}  // namespace mdi
