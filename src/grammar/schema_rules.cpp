// From a schema to its alternatives, and from those to rules.
#include "grammar/schema_rules.h"

#include <algorithm>

#include "core/error.h"

namespace mdi {
namespace {

int hexadecimal(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// A step of a JSON pointer in a URI: %XX, then ~1 and ~0.
std::string pointer_step(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hexadecimal(text[i + 1]) >= 0 && hexadecimal(text[i + 2]) >= 0) {
      plain += static_cast<char>(hexadecimal(text[i + 1]) * 16 + hexadecimal(text[i + 2]));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  std::string step;
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool escape = plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1');
    step += escape ? (plain[++i] == '0' ? '~' : '/') : plain[i];
  }
  return step;
}

bool has_type(const std::string& type, const OrderedJson& value) {
  if (type == "integer") {
    return value.is_number_integer() || value.is_binary() ||
           (value.is_number_float() && value.get<double>() == static_cast<double>(static_cast<int64_t>(
                                                                  std::clamp(value.get<double>(), -9e15, 9e15))));
  }
  if (type == "number") return value.is_number() || value.is_binary();
  return type == value.type_name();
}

}  // namespace

SchemaRules::SchemaRules(GrammarRules& rules, JsonRules& json, const OrderedJson& root, std::string where,
                         SchemaOptions options)
    : rules_(rules), json_(json), root_(root), where_(std::move(where)), options_(options) {}

SchemaRules::Place SchemaRules::inside(const Place& place, const std::string& key, const Json& schema) const {
  if (place.depth >= options_.max_depth) {
    fail(place, "", "schemas inside one another: expected at most " + std::to_string(options_.max_depth));
  }
  return {&schema, place.path + "/" + key, place.depth + 1};
}

SchemaRules::Place SchemaRules::resolve(const std::string& pointer, const Place& from) const {
  if (pointer != "#" && pointer.rfind("#/", 0) != 0) {
    fail(from, "$ref", "expected '#' or '#/...', a place in the same schema, found '" + pointer + "'");
  }
  const Json* at = &root_;
  for (size_t begin = 1; begin < pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    const std::string step = pointer_step(std::string_view(pointer).substr(begin + 1, end - begin - 1));
    const bool index = at->is_array() && !step.empty() && step.size() < 7 &&
                       std::all_of(step.begin(), step.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (at->is_object() && at->contains(step)) {
      at = &(*at)[step];
    } else if (index && std::stoul(step) < at->size()) {
      at = &(*at)[std::stoul(step)];
    } else {
      fail(from, "$ref", "nothing is at '" + pointer + "'");
    }
    begin = end;
  }
  return {at, pointer.substr(1), 0};
}

void SchemaRules::leaves(const Place& place, std::vector<Leaf>& found) {
  step();
  const Json& schema = *place.schema;
  if (schema.is_boolean()) {
    if (schema.get<bool>()) found.push_back({Leaf::Kind::kAny, place, ""});
    return;
  }
  if (!schema.is_object()) fail(place, "", std::string("expected a schema, found ") + schema.type_name());
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    check_siblings(place, "$ref");
    if (!ref->is_string()) fail(place, "$ref", "expected a string");
    found.push_back({Leaf::Kind::kReference, place, ref->get<std::string>()});
    return;
  }
  const char* literals = schema.contains("const") ? "const" : schema.contains("enum") ? "enum" : nullptr;
  if (literals != nullptr) {
    check_siblings(place, literals, true);
    const std::vector<std::string> wanted = schema.contains("type") ? types(place) : std::vector<std::string>{};
    const auto add = [&](const Json& value) {
      step();
      const bool fits = wanted.empty() ||
                        std::any_of(wanted.begin(), wanted.end(), [&](const auto& t) { return has_type(t, value); });
      if (fits) found.push_back({Leaf::Kind::kLiteral, place, "", &value});
    };
    const Json& given = schema[literals];
    if (std::string(literals) == "const") return add(given);
    if (!given.is_array() || given.empty()) fail(place, "enum", "expected a list of at least one value");
    for (const Json& value : given) add(value);
    return;
  }
  // Without strict, what an object says of itself goes before its alternatives, which mostly say what is required.
  const bool own = !options_.strict && (schema.contains("properties") || schema.contains("items"));
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    const auto options = schema.find(keyword);
    if (options == schema.end() || own) continue;
    if (!options->is_array() || options->empty()) fail(place, keyword, "expected a list of at least one schema");
    check_siblings(place, keyword);
    const std::string name = keyword;
    if (name == "allOf" && options->size() > 1) unsupported(place, name, "with more than one schema");
    if (name == "oneOf" && options->size() > 1 && !one_at_a_time(*options)) {
      unsupported(place, name, "where more than one schema may fit (use anyOf)");
    }
    const size_t used = name == "allOf" ? 1 : options->size();
    for (size_t i = 0; i < used; ++i) leaves(inside(place, name + "/" + std::to_string(i), (*options)[i]), found);
    return;
  }
  type_leaves(place, found);
}

void SchemaRules::type_leaves(const Place& place, std::vector<Leaf>& found) {
  const std::vector<std::string> wanted = types(place);
  check_keywords(place, wanted);
  if (wanted.empty()) found.push_back({Leaf::Kind::kAny, place, ""});
  const bool number = std::find(wanted.begin(), wanted.end(), "number") != wanted.end();
  for (const std::string& type : wanted) {
    if (type == "integer" && number) continue;
    found.push_back({Leaf::Kind::kTyped, place, type});
  }
}

SchemaRules::Expr SchemaRules::reference(const Leaf& leaf) {
  const auto [at, is_new] = references_.try_emplace(leaf.type, -1);
  if (is_new) {
    const Place target = resolve(leaf.type, leaf.place);
    at->second = rules_.declare(where_ + target.path);
    pending_.emplace_back(at->second, target);
  }
  return rules_.ref(at->second);
}

// References are followed one after the other, so that a long chain of them needs no deep stack.
void SchemaRules::define_pending() {
  while (!pending_.empty()) {
    const auto [rule, place] = pending_.back();
    pending_.pop_back();
    rules_.define(rule, value(place));
  }
}

SchemaRules::Expr SchemaRules::leaf_json(const Leaf& leaf) {
  if (leaf.kind == Leaf::Kind::kAny) return json_.value();
  if (leaf.kind == Leaf::Kind::kLiteral) return json_.literal(*leaf.literal);
  if (leaf.kind == Leaf::Kind::kReference) return reference(leaf);
  if (leaf.type == "object") return object(leaf.place);
  if (leaf.type == "array") return array(leaf.place);
  if (leaf.type == "integer") return integer(leaf.place);
  if (leaf.type == "number") return number(leaf.place);
  if (leaf.type == "boolean") return json_.boolean();
  if (leaf.type == "null") return json_.null();
  bool plain = false;
  const Expr inside = string_inside(leaf.place, json_.alphabet(), plain);
  return plain ? json_.string() : json_.quoted(inside);
}

SchemaRules::Expr SchemaRules::value(const Place& place) {
  std::vector<Leaf> found;
  leaves(place, found);
  std::vector<Expr> options;
  options.reserve(found.size());
  for (const Leaf& leaf : found) options.push_back(leaf_json(leaf));
  return rules_.choice(std::move(options));
}

SchemaRules::Expr SchemaRules::json() {
  const Rule root = rules_.declare(where_);
  references_.emplace("#", root);
  rules_.define(root, value({&root_, "", 0}));
  define_pending();
  return rules_.ref(root);
}

// References are followed here and now: whether a value is a string decides how it is written.
SchemaValue SchemaRules::written(const Place& place) {
  std::vector<Leaf> open, found;
  leaves(place, open);
  while (!open.empty()) {
    const Leaf leaf = open.back();
    open.pop_back();
    if (leaf.kind != Leaf::Kind::kReference) {
      found.push_back(leaf);
      continue;
    }
    Place target = resolve(leaf.type, leaf.place);
    target.depth = leaf.place.depth + 1;
    if (target.depth > options_.max_depth) {
      fail(leaf.place, "$ref", "references behind one another: expected at most " + std::to_string(options_.max_depth));
    }
    leaves(target, open);
  }
  std::vector<Expr> texts, others;
  static const PlainAlphabet kPlain;
  for (const Leaf& leaf : found) {
    const bool any = leaf.kind == Leaf::Kind::kAny;
    if (any) {
      others.insert(others.end(), {json_.number(), json_.boolean(), json_.null(), json_.array(), json_.object()});
    }
    if (any || leaf.type == "string") {
      bool plain = any;
      const Expr inside = any ? rules_.never() : string_inside(leaf.place, kPlain, plain);
      texts.push_back(plain ? rules_.repeat(rules_.one_of(all_code_points()), 0, GrammarRules::kNoLimit) : inside);
    } else if (leaf.kind == Leaf::Kind::kLiteral && leaf.literal->is_string()) {
      texts.push_back(rules_.text(leaf.literal->get_ref<const std::string&>()));
    } else if (!any) {
      others.push_back(leaf_json(leaf));
    }
  }
  return {rules_.choice(std::move(texts)), rules_.choice(std::move(others))};
}

SchemaMembers SchemaRules::members() {
  std::vector<Leaf> found;
  leaves({&root_, "", 0}, found);
  for (int hops = 0; found.size() == 1 && found[0].kind == Leaf::Kind::kReference; ++hops) {
    if (hops > options_.max_depth) fail(found[0].place, "$ref", "refers to itself");
    const Place target = resolve(found[0].type, found[0].place);
    found.clear();
    leaves(target, found);
  }
  const bool any = found.size() == 1 && found[0].kind == Leaf::Kind::kAny;
  if (!any && (found.size() != 1 || found[0].type != "object")) {
    throw Error(where_, "expected the schema of an object: a call's arguments have names");
  }
  const Place& root = found[0].place;
  SchemaMembers made;
  const std::vector<Declared> names = declared(root);
  check_optional(root, names);
  for (const Declared& d : names) made.declared.push_back({d.name, written(d.place), d.required});
  made.others = allows_others(root);
  if (made.others) made.other = written(other_place(root));
  for (const char* keyword : {"patternProperties", "minProperties", "maxProperties"}) {
    if (root.schema->is_object() && root.schema->contains(keyword))
      unsupported(root, keyword, "for a call's arguments");
  }
  define_pending();
  return made;
}

}  // namespace mdi
