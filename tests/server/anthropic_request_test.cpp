// Bodies of POST /v1/messages: every parameter, its bounds, and what the model is shown.
#include "anthropic_support.h"

namespace mdi {
namespace {

using testing::parsed;
using testing::prompt_of;
using testing::refused_member;
using testing::signer;

using Choice = GrammarSpec::ToolChoice;

std::string refusal(const std::string& members) {
  return refused_member([&] { parsed(members); });
}

TEST(AnthropicRequest, SaysWhatIsSampledAndHowMuch) {
  const MessagesRequest r =
      parsed(R"("max_tokens":17,"temperature":0.5,"top_p":0.25,"top_k":7,"stop_sequences":["a","b"],"stream":true)");
  EXPECT_EQ(r.generation.max_tokens, 17);
  EXPECT_FLOAT_EQ(r.generation.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(r.generation.sampling.top_p, 0.25f);
  EXPECT_EQ(r.generation.sampling.top_k, 7);
  EXPECT_EQ(r.generation.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(r.stream);
  EXPECT_FALSE(parsed("").stream);
  EXPECT_GT(parsed(R"("top_p":0)").generation.sampling.top_p, 0);
  EXPECT_NE(parsed("").generation.sampling.seed, parsed("").generation.sampling.seed);
}

TEST(AnthropicRequest, RefusesWhatIsOutOfRangeByItsName) {
  EXPECT_EQ(refusal(""), "accepted");
  EXPECT_EQ(refusal(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(refusal(R"("max_tokens":null)"), "max_tokens");
  EXPECT_EQ(refusal(R"("max_tokens":"5")"), "max_tokens");
  EXPECT_EQ(refusal(R"("temperature":1.01)"), "temperature");
  EXPECT_EQ(refusal(R"("top_p":-0.1)"), "top_p");
  EXPECT_EQ(refusal(R"("top_k":-1)"), "top_k");
  EXPECT_EQ(refusal(R"("stop_sequences":[1])"), "stop_sequences[0]");
  EXPECT_EQ(refusal(R"("model":null)"), "model");
  EXPECT_EQ(refusal(R"("model":"other")"), "model");
  EXPECT_EQ(refusal(R"("messages":[])"), "messages");
  EXPECT_EQ(refusal(R"("messages":{})"), "messages");
  EXPECT_EQ(refusal(R"("messages":[{"role":"tool","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(refusal(R"("messages":[{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refusal(R"("messages":[{"role":"user","content":"x","name":"n"}])"), "messages[0].name");
  EXPECT_EQ(refusal(R"("messages":[{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text");
  EXPECT_EQ(refusal(R"("messages":[{"role":"assistant","content":[]}])"), "messages");
  EXPECT_EQ(refusal(R"("system":"Be brief.","messages":[{"role":"assistant","content":"x"}])"), "messages");
  EXPECT_EQ(refusal(R"("messages":[{"role":"system","content":"x"}])"), "messages");
  EXPECT_EQ(refusal(R"("messages":[{"role":"user","content":[]},{"role":"assistant","content":"x"}])"), "accepted");
  EXPECT_EQ(refusal(R"("messages":[{"role":"assistant","content":"x"},{"role":"user","content":[]}])"), "accepted");
  EXPECT_EQ(refusal(R"("system":5)"), "system");
  EXPECT_EQ(refusal(R"("system":[{"type":"image"}])"), "system[0].type");
  EXPECT_EQ(refusal(R"("mcp_servers":[])"), "mcp_servers");
  EXPECT_EQ(refusal(R"("surprise":1)"), "surprise");
  EXPECT_EQ(refusal(R"("metadata":{"user_id":"u"},"service_tier":"auto","cache_control":{"type":"ephemeral"})"),
            "accepted");
}

TEST(AnthropicRequest, ThinkingIsOffUnlessAskedForAndABudgetIsAnEffort) {
  EXPECT_FALSE(parsed("").generation.thinking);
  EXPECT_FALSE(parsed(R"("thinking":{"type":"disabled"})").generation.thinking);
  EXPECT_TRUE(parsed(R"("thinking":{"type":"adaptive"})").generation.thinking);
  const MessagesRequest r = parsed(R"("thinking":{"type":"enabled","budget_tokens":4096})");
  EXPECT_TRUE(r.generation.thinking);
  EXPECT_EQ(r.generation.effort, 50);
  EXPECT_EQ(effort_of_budget(1024), 25);
  EXPECT_EQ(effort_of_budget(16384), 75);
  EXPECT_EQ(effort_of_budget(65536), 100);
  EXPECT_EQ(effort_of_budget(INT32_MAX), 100);
  EXPECT_EQ(effort_of_budget(1), 1);
  EXPECT_EQ(parsed(R"("thinking":{"type":"adaptive"},"output_config":{"effort":"max"})").generation.effort, 100);
  EXPECT_EQ(refusal(R"("thinking":{"type":"enabled"})"), "thinking.budget_tokens");
  EXPECT_EQ(refusal(R"("thinking":{"type":"enabled","budget_tokens":5000})"), "thinking.budget_tokens");
  EXPECT_EQ(refusal(R"("thinking":{"type":"disabled","budget_tokens":2000})"), "thinking.budget_tokens");
  EXPECT_EQ(refusal(R"("thinking":{"type":"sometimes"})"), "thinking.type");
}

TEST(AnthropicRequest, ToolsAreShownAndChosenFrom) {
  const std::string tools =
      R"("tools":[{"name":"a","description":"D","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}},
                  {"type":"custom","name":"b","input_schema":{"type":"object"},"strict":true}])";
  const MessagesRequest r = parsed(tools);
  EXPECT_EQ(r.generation.grammar.tool_choice, Choice::kAuto);
  ASSERT_EQ(r.generation.grammar.tools.size(), 2u);
  EXPECT_TRUE(r.generation.grammar.tools[1].strict);
  const std::string prompt = prompt_of(r);
  EXPECT_NE(prompt.find(R"({"name": "a", "description": "D", "parameters": {"type": "object"}})"), std::string::npos)
      << prompt;
  const auto choice = [&](const std::string& value) { return parsed(tools + R"(,"tool_choice":)" + value).generation; };
  EXPECT_EQ(choice(R"({"type":"any"})").grammar.tool_choice, Choice::kRequired);
  EXPECT_EQ(choice(R"({"type":"none"})").grammar.tool_choice, Choice::kNone);
  const Generation named = choice(R"({"type":"tool","name":"b","disable_parallel_tool_use":true})");
  EXPECT_EQ(named.grammar.tool_choice, Choice::kNamed);
  EXPECT_EQ(named.grammar.tool_name, "b");
  EXPECT_FALSE(named.grammar.parallel);
  EXPECT_TRUE(choice(R"({"type":"auto"})").grammar.parallel);
  EXPECT_EQ(refusal(tools + R"(,"tool_choice":{"type":"tool","name":"c"})"), "tool_choice.name");
  EXPECT_EQ(refusal(tools + R"(,"tool_choice":{"type":"any","name":"a"})"), "tool_choice.name");
  EXPECT_EQ(refusal(R"("tool_choice":{"type":"any"})"), "tool_choice.type");
  EXPECT_EQ(refusal(R"("tools":[{"name":"a b","input_schema":{}}])"), "tools[0].name");
  EXPECT_EQ(refusal(R"("tools":[{"name":"a","input_schema":{}},{"name":"a","input_schema":{}}])"), "tools[1].name");
  EXPECT_EQ(refusal(R"("tools":[{"name":"a","type":"bash_20250124"}])"), "tools[0].type");
}

TEST(AnthropicRequest, BlocksBecomeTheModelsOwnConversation) {
  const MessagesRequest r = parsed(R"("system":[{"type":"text","text":"S1"},{"type":"text","text":"S2"}],
    "tools":[{"name":"f","input_schema":{"type":"object"}}],
    "messages":[
      {"role":"user","content":"Q"},
      {"role":"assistant","content":[{"type":"redacted_thinking","data":"?"},{"type":"thinking","thinking":"T","signature":""},
        {"type":"text","text":"A1"}]},
      {"role":"assistant","content":[{"type":"text","text":"A2"},{"type":"tool_use","id":"1","name":"f","input":{"x":1}},
        {"type":"tool_use","id":"2","name":"f","input":{"x":"y"}}]},
      {"role":"user","content":[{"type":"text","text":"B"},
        {"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"R2"}],"is_error":true},
        {"type":"tool_result","tool_use_id":"1","content":"R1"},{"type":"text","text":"C"}]}],
    "thinking":{"type":"adaptive"})");
  EXPECT_EQ(r.edited_thinking, 1);
  const std::string prompt = prompt_of(r);
  EXPECT_NE(prompt.find("S1\n\nS2\n\n## Tools"), std::string::npos) << prompt;
  // Results come in the order of their calls, as the format has them.
  const std::string turns =
      "<｜User｜>Q<｜Assistant｜><think>T</think>A1A2\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
      "<｜DSML｜ parameter name=\"x\" string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
      "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" string=\"true\">y</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>"
      "<｜User｜>B\n\n<tool_result>R1</tool_result>\n\n<tool_result>Error: R2</tool_result>\n\nC<｜Assistant｜><think>";
  EXPECT_TRUE(prompt.ends_with(turns)) << prompt;
}

TEST(AnthropicRequest, ALastMessageOfTheAssistantIsContinued) {
  const MessagesRequest r =
      parsed(R"("messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"It is"}])");
  EXPECT_TRUE(prompt_of(r).ends_with("<｜Assistant｜></think>It is")) << prompt_of(r);
  EXPECT_EQ(refusal(R"("messages":[{"role":"user","content":"Q"},{"role":"assistant","content":
      [{"type":"tool_use","id":"1","name":"f","input":{}}]}])"),
            "messages");
}

TEST(AnthropicRequest, BlocksThatDoNotBelongAreNamed) {
  const auto block = [](const std::string& role, const std::string& value) {
    return refusal(R"("messages":[{"role":")" + role + R"(","content":[)" + value + "]}]");
  };
  EXPECT_EQ(block("user", R"({"type":"thinking","thinking":"x"})"), "messages[0].content[0].type");
  EXPECT_EQ(block("assistant", R"({"type":"tool_result","tool_use_id":"x"})"), "messages[0].content[0].type");
  EXPECT_EQ(block("system", R"({"type":"image"})"), "messages[0].content[0].type");
  EXPECT_EQ(block("user", R"({"type":"document","source":{}})"), "messages[0].content[0].type");
  EXPECT_EQ(block("user", R"({"type":"tool_result","tool_use_id":"x"})"), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(block("assistant", R"({"type":"tool_use","id":"1","name":"f"})"), "messages[0].content[0].input");
  EXPECT_EQ(block("assistant", R"({"type":"tool_use","id":"1","name":"f","input":[]})"),
            "messages[0].content[0].input");
  EXPECT_EQ(block("user", R"({"type":"image","source":{"type":"base64","data":"AAAA"}})"), "messages[0].content[0]");
  EXPECT_EQ(block("user", "7"), "messages[0].content[0]");
}

TEST(AnthropicRequest, ASignatureIsOfOneTextOnly) {
  const std::string own = signer().sign("I think so.");
  EXPECT_TRUE(signer().matches("I think so.", own));
  EXPECT_FALSE(signer().matches("I think so!", own));
  EXPECT_FALSE(signer().matches("I think so.", own.substr(1)));
  EXPECT_FALSE(signer().matches("I think so.", ""));
  EXPECT_FALSE(ThinkingSigner().matches("I think so.", own)) << "another server has another key";
  const std::string history = R"("messages":[{"role":"user","content":"Q"},{"role":"assistant","content":
      [{"type":"thinking","thinking":"I think so.","signature":")" +
                              own + R"("},{"type":"text","text":"A"}]},
      {"role":"user","content":"R"}])";
  EXPECT_EQ(parsed(history).edited_thinking, 0);
}

TEST(AnthropicRequest, AStructuredAnswerIsShownAndEnforced) {
  const MessagesRequest r = parsed(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})");
  EXPECT_EQ(r.generation.grammar.kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(r.generation.grammar.schema, R"({"type": "object"})");
  EXPECT_NE(prompt_of(r).find("## Response Format"), std::string::npos);
  EXPECT_EQ(refusal(R"("output_config":{"format":{"type":"xml"}})"), "output_config.format.type");
}

}  // namespace
}  // namespace mdi
