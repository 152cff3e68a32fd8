#include "grammar/tool_rules.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"
#include "text/unicode.h"

namespace mdi {
namespace {

using Expr = GrammarRules::Expr;
using Rule = GrammarRules::Rule;
constexpr int64_t kNoLimit = GrammarRules::kNoLimit;

class AnswerRules {
 public:
  AnswerRules(const GrammarSpec& spec, int32_t dsml, const GrammarLimits& limits)
      : spec_(spec), dsml_(dsml), limits_(limits), rules_(limits.max_cost, limits.max_unrolled), json_(rules_) {}

  AnswerGrammar write() {
    using Choice = GrammarSpec::ToolChoice;
    Expr answer = rules_.never();
    const bool calls_only = spec_.tool_choice == Choice::kRequired || spec_.tool_choice == Choice::kNamed;
    if (!calls_only) {
      answer = content();
      parts_.emplace_back(answer_source(spec_), answer);
    }
    if (calls_only) answer = calls();
    if (spec_.tool_choice == Choice::kAuto) {
      const Expr called = calls();
      answer = spec_.kind == GrammarSpec::Kind::kNone ? rules_.sequence({answer, rules_.optional(called)})
                                                      : rules_.choice({answer, called});
    }
    check_possible();
    const Rule root = rules_.rule(answer_source(spec_), answer);
    return {rules_.ebnf(root), rules_.cost()};
  }

 private:
  // Each part for itself: beside another one it would go missing without a word.
  void check_possible() const {
    std::vector<Expr> exprs;
    exprs.reserve(parts_.size());
    for (const auto& [where, expr] : parts_) exprs.push_back(expr);
    const std::vector<bool> impossible = rules_.impossible(exprs);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (impossible[i]) throw Error(parts_[i].first, "nothing can satisfy it");
    }
  }

  Expr any_text() { return rules_.repeat(rules_.one_of(all_code_points()), 0, kNoLimit); }

  SchemaOptions schema_options(bool strict) const { return {strict, limits_.max_depth, limits_.max_repeat}; }

  // The tree stays as long as the rules are being written.
  const OrderedJson& parse(const std::string& schema, const std::string& where) {
    JsonLimits limits;
    limits.max_bytes = limits_.max_bytes;
    limits.max_depth = 3 * limits_.max_depth;
    return *trees_.emplace_back(parse_ordered_json(schema, where, limits));
  }

  Expr content() {
    switch (spec_.kind) {
      case GrammarSpec::Kind::kNone:
        return any_text();
      case GrammarSpec::Kind::kJsonObject:
        return json_.object();
      case GrammarSpec::Kind::kJsonSchema:
        return SchemaRules(rules_, json_, parse(spec_.schema, "response_format"), "response_format",
                           schema_options(spec_.strict))
            .json();
      case GrammarSpec::Kind::kRegex:
        return Pattern::parse(spec_.pattern, "regex", {limits_.max_depth}).whole(rules_, PlainAlphabet());
      case GrammarSpec::Kind::kChoice:
        return choices();
    }
    return rules_.never();
  }

  Expr choices() {
    if (spec_.choices.empty() || spec_.choices.size() > static_cast<size_t>(limits_.max_choices)) {
      throw Error("choice", "expected 1 to " + std::to_string(limits_.max_choices) + " choices, found " +
                                std::to_string(spec_.choices.size()));
    }
    std::vector<Expr> options;
    for (const std::string& text : spec_.choices) {
      if (valid_utf8_prefix(text) != text.size()) throw Error("choice", "expected UTF-8");
      options.push_back(rules_.text(text));
    }
    return rules_.choice(std::move(options));
  }

  Expr calls() {
    if (dsml_ < 0) throw Error("tools", "the model's tokenizer has no token for tool calls");
    std::vector<Expr> functions;
    std::set<std::string> names;
    for (size_t i = 0; i < spec_.tools.size(); ++i) {
      const GrammarTool& tool = spec_.tools[i];
      const std::string where = "tools[" + std::to_string(i) + "] (" + tool.name + ")";
      check_name(tool.name, where);
      if (!names.insert(tool.name).second) throw Error(where, "two tools of one name");
      const bool wanted = spec_.tool_choice != GrammarSpec::ToolChoice::kNamed || tool.name == spec_.tool_name;
      if (!wanted) continue;
      functions.push_back(call(tool, where));
      parts_.emplace_back(where, functions.back());
    }
    if (functions.empty()) {
      const bool named = spec_.tool_choice == GrammarSpec::ToolChoice::kNamed;
      throw Error("tool_choice", named ? "no tool is named '" + spec_.tool_name + "'" : "expected at least one tool");
    }
    const Rule one = rules_.rule("call", rules_.choice(std::move(functions)));
    const bool many = spec_.parallel && spec_.tool_choice != GrammarSpec::ToolChoice::kNamed;
    const Expr more =
        many ? rules_.repeat(rules_.sequence({rules_.text("\n"), rules_.ref(one)}), 0, kNoLimit) : rules_.text("");
    return rules_.sequence(
        {rules_.text("\n\n"), tag("<", " calls>\n"), rules_.ref(one), more, rules_.text("\n"), tag("</", " calls>")});
  }

  void check_name(const std::string& name, const std::string& where) const {
    const bool fits = !name.empty() && name.size() <= 256 && valid_utf8_prefix(name) == name.size() &&
                      std::none_of(name.begin(), name.end(), [](char c) { return (c >= 0 && c < ' ') || c == '"'; });
    if (!fits) throw Error(where, "expected a name of 1 to 256 bytes without quotes and control characters");
  }

  Expr tag(const char* opening, const std::string& rest) {
    return rules_.sequence({rules_.text(opening), rules_.token(dsml_), rules_.text(rest)});
  }

  Expr call(const GrammarTool& tool, const std::string& where) {
    const Expr parameters = tool.strict && !tool.parameters.empty() ? strict_parameters(tool, where) : any_parameters();
    const Expr whole =
        rules_.sequence({tag("<", " invoke name=\"" + tool.name + "\">\n"), parameters, tag("</", " invoke>")});
    return rules_.ref(rules_.rule(where, whole));
  }

  // name=..., the value and the closing tag.
  Expr parameter(Expr name, const SchemaValue& value) {
    // The value and the tag behind it are one sequence: that is what makes a bounded text cheap.
    const auto written = [&](const char* opening, Expr inside) {
      return rules_.sequence(
          {rules_.text(opening), inside, rules_.text("</"), rules_.token(dsml_), rules_.text(" parameter>")});
    };
    const Expr text = written("\" string=\"true\">", value.text);
    const Expr json = written("\" string=\"false\">", value.json);
    return rules_.sequence({tag("<", " parameter name=\""), name, rules_.choice({text, json})});
  }

  // A name that needs no escape anywhere and ends where ChatParser sees it end.
  Expr any_name() {
    const CodePoints outside = {{0, ' '}, {'"', '"'}, {'<', '<'}, {'>', '>'}, {'\\', '\\'}, {0x7F, 0x9F}};
    return rules_.repeat(rules_.one_of(complement(outside)), 1, kNoLimit);
  }

  // Well-formed: the same for all tools.
  Expr any_parameters() {
    if (any_parameters_ < 0) {
      const Expr json = rules_.choice({json_.number(), json_.boolean(), json_.null(), json_.array(), json_.object()});
      const Rule one = rules_.rule("parameter", parameter(any_name(), {any_text(), json}));
      const Expr some = rules_.repeat(rules_.sequence({rules_.text("\n"), rules_.ref(one)}), 0, kNoLimit);
      any_parameters_ =
          rules_.rule("parameters",
                      rules_.choice({rules_.text("\n"), rules_.sequence({rules_.ref(one), some, rules_.text("\n")})}));
    }
    return rules_.ref(any_parameters_);
  }

  // In the order of the schema, from the last to the first: what may follow once one was written, and before any was.
  Expr strict_parameters(const GrammarTool& tool, const std::string& where) {
    SchemaRules schema(rules_, json_, parse(tool.parameters, where), where, schema_options(true));
    const SchemaMembers members = schema.members();
    if (members.others && !members.declared.empty()) {
      throw Error(where + "/additionalProperties",
                  "expected false: the arguments are those that 'properties' and 'required' name");
    }
    if (members.others) return any_parameters_of(members.other);
    Expr behind = rules_.text("\n"), at_first = rules_.text("\n");
    for (size_t i = members.declared.size(); i-- > 0;) {
      const SchemaMember& member = members.declared[i];
      check_name(member.name, where + "/properties/" + member.name);
      const Expr one = rules_.ref(
          rules_.rule(where + "/properties/" + member.name, parameter(rules_.text(member.name), member.value)));
      const auto or_not = [&](Expr with, Expr without) {
        return rules_.ref(rules_.rule("parameters", member.required ? with : rules_.choice({with, without})));
      };
      at_first = or_not(rules_.sequence({one, behind}), at_first);
      behind = or_not(rules_.sequence({rules_.text("\n"), one, behind}), behind);
    }
    return at_first;
  }

  Expr any_parameters_of(const SchemaValue& value) {
    const Rule one = rules_.rule("parameter", parameter(any_name(), value));
    const Expr some = rules_.repeat(rules_.sequence({rules_.text("\n"), rules_.ref(one)}), 0, kNoLimit);
    return rules_.choice({rules_.text("\n"), rules_.sequence({rules_.ref(one), some, rules_.text("\n")})});
  }

  const GrammarSpec& spec_;
  int32_t dsml_;
  const GrammarLimits& limits_;
  GrammarRules rules_;
  JsonRules json_;
  std::deque<JsonTree> trees_;
  std::vector<std::pair<std::string, Expr>> parts_;  // what has to be possible, and its place in the request
  Rule any_parameters_ = -1;
};

}  // namespace

std::string answer_source(const GrammarSpec& spec) {
  using Choice = GrammarSpec::ToolChoice;
  const bool calls_only = spec.tool_choice == Choice::kRequired || spec.tool_choice == Choice::kNamed;
  if (calls_only) return "tools";
  switch (spec.kind) {
    case GrammarSpec::Kind::kNone:
      return "tools";
    case GrammarSpec::Kind::kJsonObject:
    case GrammarSpec::Kind::kJsonSchema:
      return "response_format";
    case GrammarSpec::Kind::kRegex:
      return "regex";
    case GrammarSpec::Kind::kChoice:
      return "choice";
  }
  return "tools";
}

AnswerGrammar answer_grammar(const GrammarSpec& spec, int32_t dsml, const GrammarLimits& limits) {
  return AnswerRules(spec, dsml, limits).write();
}

}  // namespace mdi
