// Objects and arrays.
#include <algorithm>
#include <map>

#include "core/error.h"
#include "grammar/schema_rules.h"
#include "text/unicode.h"

namespace mdi {
namespace {
constexpr int64_t kNoLimit = GrammarRules::kNoLimit;
constexpr size_t kMaxName = 256;  // bytes
const OrderedJson kAnything = true;
}  // namespace

std::vector<SchemaRules::Declared> SchemaRules::declared(const Place& place) const {
  std::vector<Declared> found;
  if (!place.schema->is_object()) return found;
  std::map<std::string, size_t> index;
  if (const auto properties = place.schema->find("properties"); properties != place.schema->end()) {
    if (!properties->is_object()) fail(place, "properties", "expected an object");
    for (const auto& [name, schema] : properties->items()) {
      index.emplace(name, found.size());
      found.push_back({name, inside(place, "properties/" + name, schema), false});
    }
  }
  const auto required = place.schema->find("required");
  if (required != place.schema->end() && !required->is_array()) fail(place, "required", "expected a list of names");
  for (const Declared& d : found) {
    if (d.name.size() > kMaxName) fail(place, "properties", "a name: expected at most 256 bytes");
  }
  if (required == place.schema->end()) return found;
  for (const Json& name : *required) {
    if (!name.is_string() || name.get_ref<const std::string&>().size() > kMaxName) {
      fail(place, "required", "expected a list of names of at most 256 bytes");
    }
    const auto [at, undeclared] = index.emplace(name.get<std::string>(), found.size());
    if (undeclared) found.push_back({at->first, other_place(place), true});
    found[at->second].required = true;
  }
  return found;
}

void SchemaRules::check_optional(const Place& place, const std::vector<Declared>& names) const {
  const auto optional =
      static_cast<size_t>(std::count_if(names.begin(), names.end(), [](const Declared& d) { return !d.required; }));
  if (optional > kMaxOptional) {
    fail(place, "properties",
         "properties that are not required: expected at most " + std::to_string(kMaxOptional) + ", found " +
             std::to_string(optional));
  }
}

// What additionalProperties says; without it, anything.
SchemaRules::Place SchemaRules::other_place(const Place& place) const {
  if (!place.schema->is_object() || !place.schema->contains("additionalProperties")) {
    return inside(place, "additionalProperties", kAnything);
  }
  return inside(place, "additionalProperties", (*place.schema)["additionalProperties"]);
}

bool SchemaRules::allows_others(const Place& place) const {
  if (!place.schema->is_object()) return true;
  if (const auto given = place.schema->find("additionalProperties"); given != place.schema->end()) {
    return !(given->is_boolean() && !given->get<bool>());
  }
  return !place.schema->contains("properties") && !place.schema->contains("patternProperties");
}

// A key in quotes that is none of these, without escapes: with them there would be many ways to write a name.
SchemaRules::Expr SchemaRules::other_key(const std::vector<Declared>& names) {
  struct Branch {
    bool name_ends = false;
    std::map<char32_t, Branch> next;
  };
  Branch root;
  for (const Declared& d : names) {
    Branch* at = &root;
    for (size_t i = 0; i < d.name.size();) {
      const Decoded c = decode_utf8(d.name, i);
      at = &at->next[c.cp];
      i += c.size;
    }
    at->name_ends = true;
  }
  const CodePoints direct = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};
  const Expr rest = rules_.ref(rules_.rule("key", rules_.repeat(rules_.one_of(direct), 0, kNoLimit)));
  // Names are at most as long as the limit on the schema's bytes allows, so this goes through a list of its own.
  struct Open {
    const Branch* branch;
    Rule rule;
  };
  std::vector<Open> open = {{&root, rules_.declare("key")}};
  const Rule first = open[0].rule;
  while (!open.empty()) {
    const Open at = open.back();
    open.pop_back();
    CodePoints taken;
    std::vector<Expr> options;
    for (const auto& [c, branch] : at.branch->next) {
      taken.emplace_back(c, c);
      if (!contains(direct, c)) continue;
      open.push_back({&branch, rules_.declare("key")});
      options.push_back(rules_.sequence({rules_.one_of({{c, c}}), rules_.ref(open.back().rule)}));
    }
    options.push_back(rules_.sequence({rules_.one_of(intersection(direct, complement(normalised(taken)))), rest}));
    if (!at.branch->name_ends) options.push_back(rules_.text(""));
    rules_.define(at.rule, rules_.choice(std::move(options)));
  }
  return json_.quoted(rules_.ref(first));
}

SchemaRules::Expr SchemaRules::map(const Place& place) {
  Expr key = json_.string();
  Place values = place;
  if (const auto patterns = place.schema->find("patternProperties"); patterns != place.schema->end()) {
    if (!patterns->is_object()) fail(place, "patternProperties", "expected an object");
    if (patterns->size() > 1) unsupported(place, "patternProperties", "with more than one pattern");
    if (!patterns->empty()) {
      const auto only = patterns->begin();
      const std::string where = where_ + place.path + "/patternProperties";
      key = json_.quoted(Pattern::parse(only.key(), where, {options_.max_depth}).found(rules_, json_.alphabet()));
      values = inside(place, "patternProperties/" + only.key(), only.value());
    }
  }
  if (values.schema == place.schema) values = other_place(place);
  const int64_t min = count(place, "minProperties", 0), max = count(place, "maxProperties", kNoLimit);
  // A key may come twice, and then counts once.
  if (min > 1) unsupported(place, "minProperties", "of more than 1");
  const Rule one = rules_.rule("member", json_.member(key, value(values)));
  const Expr more = rules_.repeat(rules_.sequence({json_.comma(), rules_.ref(one)}), std::max<int64_t>(min - 1, 0),
                                  max == kNoLimit ? max : std::max<int64_t>(max - 1, 0));
  const Expr some = rules_.sequence({rules_.ref(one), more, json_.blank()});
  const Expr content = max == 0 ? rules_.text("") : min > 0 ? some : rules_.optional(some);
  if (max != kNoLimit && min > max) return rules_.never();
  return rules_.sequence({rules_.text("{"), json_.blank(), content, rules_.text("}")});
}

SchemaRules::Expr SchemaRules::object(const Place& place) {
  const std::vector<Declared> names = declared(place);
  check_optional(place, names);
  const bool others = allows_others(place);
  const bool patterns = place.schema->contains("patternProperties");
  if (names.empty() && (others || patterns)) return map(place);
  for (const char* keyword : {"patternProperties", "minProperties", "maxProperties"}) {
    if (place.schema->contains(keyword)) unsupported(place, keyword, "beside 'properties'");
  }

  // From the last member to the first: what may follow once a member was written, and before any was.
  Expr behind = json_.blank(), at_first = rules_.text("");
  if (others) {
    const Rule one = rules_.rule("member", json_.member(other_key(names), value(other_place(place))));
    const Expr more = rules_.repeat(rules_.sequence({json_.comma(), rules_.ref(one)}), 0, kNoLimit);
    behind = rules_.ref(rules_.rule("members", rules_.sequence({more, json_.blank()})));
    at_first = rules_.optional(rules_.sequence({rules_.ref(one), behind}));
  }
  for (size_t i = names.size(); i-- > 0;) {
    const Declared& d = names[i];
    const Expr body = json_.member(json_.literal(Json(d.name)), value(d.place));
    if (rules_.is_never(body) && d.required) return body;
    const Expr one = rules_.is_never(body) ? body : rules_.ref(rules_.rule(where_ + d.place.path, body));
    const Expr here = rules_.sequence({one, behind});
    const Expr next = rules_.sequence({json_.comma(), one, behind});
    const auto or_not = [&](Expr with, Expr without) {
      return rules_.ref(rules_.rule("members", d.required ? with : rules_.choice({with, without})));
    };
    at_first = or_not(here, at_first);
    behind = or_not(next, behind);
  }
  return rules_.sequence({rules_.text("{"), json_.blank(), at_first, rules_.text("}")});
}

SchemaRules::Expr SchemaRules::array(const Place& place) {
  const Json& schema = *place.schema;
  const int64_t min = count(place, "minItems", 0), max = count(place, "maxItems", kNoLimit);
  if (const auto unique = schema.find("uniqueItems"); unique != schema.end() && *unique != Json(false)) {
    unsupported(place, "uniqueItems");
  }
  if (max != kNoLimit && min > max) return rules_.never();
  std::vector<Expr> prefix;
  if (const auto given = schema.find("prefixItems"); given != schema.end()) {
    if (!given->is_array()) fail(place, "prefixItems", "expected a list of schemas");
    for (size_t i = 0; i < given->size(); ++i) {
      prefix.push_back(value(inside(place, "prefixItems/" + std::to_string(i), (*given)[i])));
    }
  }
  // With prefixItems and no word on further ones, there are none: they would be of any kind.
  Expr item = rules_.never();
  if (schema.contains("items")) {
    item = value(inside(place, "items", schema["items"]));
  } else if (prefix.empty()) {
    item = json_.value();
  }
  if (!rules_.is_never(item)) item = rules_.ref(rules_.rule(where_ + place.path + "/items", item));
  if (prefix.empty()) return json_.items(item, min, max);

  // From the end: what may follow the first k items.
  const auto size = static_cast<int64_t>(prefix.size());
  Expr behind =
      max != kNoLimit && max < size
          ? json_.blank()
          : rules_.sequence({rules_.repeat(rules_.sequence({json_.comma(), item}), std::max<int64_t>(min - size, 0),
                                           max == kNoLimit ? max : max - size),
                             json_.blank()});
  for (int64_t k = std::min(size, max == kNoLimit ? size : max); k-- > 0;) {
    const Expr one = prefix[static_cast<size_t>(k)];
    const Expr with = k == 0 ? rules_.sequence({one, behind}) : rules_.sequence({json_.comma(), one, behind});
    const Expr end = k == 0 ? rules_.text("") : json_.blank();
    behind = rules_.ref(rules_.rule("items", k >= min ? rules_.choice({with, end}) : with));
  }
  return rules_.sequence({rules_.text("["), json_.blank(), behind, rules_.text("]")});
}

}  // namespace mdi
