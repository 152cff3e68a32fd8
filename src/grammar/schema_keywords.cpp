// Which keywords a schema may have, and reading their values.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "grammar/schema_rules.h"

namespace mdi {
namespace {

const std::set<std::string> kAnnotations = {
    "title",   "description", "default", "examples",    "deprecated", "readOnly",        "writeOnly",       "$comment",
    "$schema", "$id",         "$defs",   "definitions", "example",    "contentEncoding", "contentMediaType"};

struct TypeKeywords {
  const char* type;
  std::set<std::string> keywords;
};
const std::vector<TypeKeywords>& type_keywords() {
  static const std::vector<TypeKeywords> all = {
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {"string", {"pattern", "format", "minLength", "maxLength"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"boolean", {}},
      {"null", {}},
  };
  return all;
}

const TypeKeywords* find_type(const std::string& type) {
  for (const TypeKeywords& known : type_keywords()) {
    if (type == known.type) return &known;
  }
  return nullptr;
}

std::string json_type(const OrderedJson& value) {
  if (value.is_number()) return "number";
  if (value.is_binary()) return "number";  // an integer beyond 64 bits
  return value.type_name();
}

}  // namespace

void SchemaRules::fail(const Place& place, const std::string& keyword, const std::string& what) const {
  throw Error(where_ + place.path + (keyword.empty() ? "" : "/" + keyword), what);
}

void SchemaRules::unsupported(const Place& place, const std::string& keyword, const std::string& why) const {
  if (!options_.strict) return;
  fail(place, keyword,
       "the keyword '" + keyword + "' is not supported" + (why.empty() ? "" : " " + why) +
           " (a schema that is not strict may have it)");
}

// A schema of exponentially many alternatives costs time before it costs states.
void SchemaRules::step() {
  constexpr int64_t kMaxSteps = 200'000;
  if (++steps_ > kMaxSteps) throw Error(where_, "too many alternatives and references inside one another");
}

void SchemaRules::check_keywords(const Place& place, const std::vector<std::string>& types) const {
  for (const auto& [keyword, value] : place.schema->items()) {
    if (keyword == "type" || kAnnotations.count(keyword) != 0) continue;
    const bool known = std::any_of(types.begin(), types.end(), [&keyword = keyword](const std::string& type) {
      return find_type(type)->keywords.count(keyword) != 0;
    });
    if (!known) unsupported(place, keyword);
  }
}

void SchemaRules::check_siblings(const Place& place, const std::string& keyword, bool type_too) const {
  for (const auto& [other, value] : place.schema->items()) {
    if (other == keyword || kAnnotations.count(other) != 0 || (type_too && other == "type")) continue;
    unsupported(place, other, "beside '" + keyword + "'");
  }
}

// What `type` says, or what the keywords imply; none: anything.
std::vector<std::string> SchemaRules::types(const Place& place) const {
  std::vector<std::string> found;
  const auto add = [&](const Json& type) {
    if (!type.is_string() || find_type(type.get<std::string>()) == nullptr) {
      fail(place, "type",
           "expected a JSON type's name, found " + type.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    if (std::find(found.begin(), found.end(), type.get<std::string>()) == found.end()) {
      found.push_back(type.get<std::string>());
    }
  };
  if (const auto type = place.schema->find("type"); type != place.schema->end()) {
    if (type->is_array()) {
      if (type->empty()) fail(place, "type", "expected at least one type");
      for (const Json& one : *type) add(one);
    } else {
      add(*type);
    }
    return found;
  }
  for (const TypeKeywords& known : type_keywords()) {
    const bool implied = std::any_of(known.keywords.begin(), known.keywords.end(),
                                     [&](const std::string& keyword) { return place.schema->contains(keyword); });
    if (implied && std::string(known.type) != "integer") found.emplace_back(known.type);
  }
  return found;
}

// Whether no value can satisfy two of the options: they differ in type, or in the value of a property that all require.
bool SchemaRules::one_at_a_time(const Json& options) const {
  std::set<std::string> seen;
  bool types_differ = true;
  for (const Json& option : options) {
    if (!option.is_object()) return false;
    const auto type = option.find("type");
    std::string name = type != option.end() && type->is_string() ? type->get<std::string>() : "";
    if (const auto value = option.find("const"); value != option.end()) name = json_type(*value);
    if (name == "integer") name = "number";
    types_differ = types_differ && !name.empty() && seen.insert(name).second;
  }
  if (types_differ) return true;
  if (options.empty() || !options[0].contains("properties") || !options[0]["properties"].is_object()) return false;
  for (const auto& [key, ignored] : options[0]["properties"].items()) {
    std::set<std::string> values;
    const bool all = std::all_of(options.begin(), options.end(), [&, &name = key](const Json& option) {
      const auto required = option.find("required");
      if (required == option.end() || !required->is_array()) return false;
      if (std::find(required->begin(), required->end(), Json(name)) == required->end()) return false;
      const auto properties = option.find("properties");
      if (properties == option.end() || !properties->is_object() || !properties->contains(name)) return false;
      const Json& property = (*properties)[name];
      if (!property.is_object()) return false;
      if (property.contains("const")) return property["const"].is_string() && values.insert(property["const"]).second;
      if (!property.contains("enum") || !property["enum"].is_array()) return false;
      return std::all_of(property["enum"].begin(), property["enum"].end(), [&](const Json& value) {
        return value.is_string() && values.insert(value.get<std::string>()).second;
      });
    });
    if (all) return true;
  }
  return false;
}

int64_t SchemaRules::count(const Place& place, const char* keyword, int64_t otherwise) const {
  const auto found = place.schema->find(keyword);
  if (found == place.schema->end()) return otherwise;
  const double value = found->is_number() ? found->get<double>() : -1;
  if (value < 0 || value != std::floor(value)) fail(place, keyword, "expected a whole number that is not negative");
  if (value > static_cast<double>(options_.max_repeat)) {
    fail(place, keyword, "expected at most " + std::to_string(options_.max_repeat));
  }
  return static_cast<int64_t>(value);
}

}  // namespace mdi
