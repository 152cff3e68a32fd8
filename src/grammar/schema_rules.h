// JSON Schema (draft 2020-12) to a grammar, as far as a context-free one can follow it.
//
// What the grammar allows is always valid; it allows less than the schema where the schema leaves a choice that no
// model needs: members come in the order of `properties`; an object that declares properties has no others unless
// additionalProperties says so, and then their keys are written without escapes; integers have at most 18 digits; a
// keyword for one type implies that type; a string of bounded length has no characters that JSON escapes and, in a tool
// call, no '<'.
//
// Followed: type, enum, const, properties, required, additionalProperties, patternProperties (one pattern and no
// properties), minProperties and maxProperties (no properties), items, prefixItems, minItems, maxItems, minLength,
// maxLength, pattern (ECMAScript without look-around, back-references and \b), format (formats.h), minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, multipleOf (integers within bounds), anyOf, oneOf (provably one at a time), allOf
// (of one), $ref within the document (a JSON pointer), $defs, and annotations. Any other keyword, and a combination
// that cannot be followed, is an error in a strict schema and passed over otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "grammar/json_rules.h"
#include "grammar/rules.h"
#include "text/ordered_json.h"

namespace mdi {

// Of one object: each that may be left out is one more place where a text may be, at once.
inline constexpr size_t kMaxOptional = 200;

struct SchemaOptions {
  bool strict = false;
  int max_depth = 32;  // of schemas inside one another
  int64_t max_repeat = 10'000;
};

// The ways to write a value in a tool call (spec chat-format.md section 5).
struct SchemaValue {
  GrammarRules::Expr text;  // a string, as it is
  GrammarRules::Expr json;  // anything but a string, as JSON
};

struct SchemaMember {
  std::string name;
  SchemaValue value;
  bool required = false;
};

struct SchemaMembers {
  std::vector<SchemaMember> declared;  // in their order
  bool others = false;                 // any other names, with `other` values
  SchemaValue other{};
};

class SchemaRules {
 public:
  using Expr = GrammarRules::Expr;
  using Rule = GrammarRules::Rule;

  // `root` must outlive this. `where` names it in errors, which go on with a JSON pointer: "tools[0] (f)/properties/x".
  // All functions throw mdi::Error for what is no schema, what strict does not allow, and limits.
  SchemaRules(GrammarRules& rules, JsonRules& json, const OrderedJson& root, std::string where, SchemaOptions options);

  Expr json();              // the value as JSON
  SchemaMembers members();  // of a root that is an object

 private:
  using Json = OrderedJson;
  struct Place {
    const Json* schema;
    std::string path;
    int depth;
  };
  // What a schema comes down to: alternatives, each of one kind.
  struct Leaf {
    enum class Kind : uint8_t { kAny, kLiteral, kTyped, kReference } kind;
    Place place;
    std::string type;               // kTyped; kReference: the pointer
    const Json* literal = nullptr;  // kLiteral
  };

  // schema_rules.cpp
  void leaves(const Place& place, std::vector<Leaf>& found);
  void type_leaves(const Place& place, std::vector<Leaf>& found);
  Place resolve(const std::string& pointer, const Place& from) const;
  Expr value(const Place& place);
  Expr leaf_json(const Leaf& leaf);
  Expr reference(const Leaf& leaf);
  void define_pending();
  SchemaValue written(const Place& place);
  Place inside(const Place& place, const std::string& key, const Json& schema) const;

  // schema_containers.cpp
  struct Declared {
    std::string name;
    Place place;
    bool required;
  };
  std::vector<Declared> declared(const Place& place) const;
  void check_optional(const Place& place, const std::vector<Declared>& names) const;
  bool allows_others(const Place& place) const;
  Place other_place(const Place& place) const;
  Expr object(const Place& place);
  Expr map(const Place& place);
  Expr other_key(const std::vector<Declared>& names);
  Expr array(const Place& place);

  // schema_scalars.cpp
  Expr string_inside(const Place& place, const Pattern::Alphabet& alphabet, bool& plain);
  Expr integer(const Place& place);
  Expr number(const Place& place);

  // schema_keywords.cpp
  [[noreturn]] void fail(const Place& place, const std::string& keyword, const std::string& what) const;
  void unsupported(const Place& place, const std::string& keyword, const std::string& why = "") const;
  void check_keywords(const Place& place, const std::vector<std::string>& types) const;
  void check_siblings(const Place& place, const std::string& keyword, bool type_too = false) const;
  std::vector<std::string> types(const Place& place) const;
  bool one_at_a_time(const Json& options) const;
  int64_t count(const Place& place, const char* keyword, int64_t otherwise) const;
  void step();

  GrammarRules& rules_;
  JsonRules& json_;
  const Json& root_;
  std::string where_;
  SchemaOptions options_;
  std::map<std::string, Rule> references_;
  std::vector<std::pair<Rule, Place>> pending_;
  int64_t steps_ = 0;
};

}  // namespace mdi
