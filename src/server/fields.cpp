#include "server/fields.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/printable.h"

namespace mdi {

namespace {

// A key that comes twice is refused: which of the two counts is not the same for all readers.
class BodyBuilder : public OrderedJsonBuilder {
 public:
  void on_object() override {
    keys_.emplace_back();
    OrderedJsonBuilder::on_object();
  }
  void on_key(std::string& key) override {
    if (!keys_.back().insert(key).second)
      throw Error("body", "the key " + printable(key, 80) + " is twice in an object");
    OrderedJsonBuilder::on_key(key);
  }
  void on_object_end() override {
    keys_.pop_back();
    OrderedJsonBuilder::on_object_end();
  }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

std::string digits(double value) {
  std::string text = python_json(value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

OrderedJson parse_body(const std::string& body) {
  if (body.empty())
    throw ApiError(ApiErrorKind::kInvalid, "The body is empty; expected a JSON object.", {}, "invalid_json");
  BodyBuilder builder;
  try {
    read_json(body, "body", {body.size(), kMaxBodyDepth, kMaxBodyValues}, builder);
  } catch (const Error& error) {
    throw ApiError(ApiErrorKind::kInvalid, error.what(), {}, "invalid_json");
  }
  JsonTree value(builder.take());
  if (!value->is_object()) {
    throw ApiError(ApiErrorKind::kInvalid, "body: expected a JSON object, found " + describe_value(*value), {},
                   "invalid_json");
  }
  return value.take();
}

std::string describe_value(const OrderedJson& value) {
  if (value.is_object() && !value.empty()) return "an object";
  if (value.is_array() && !value.empty()) return "a list";
  return printable(python_json(value), 80);
}

Fields::Fields(const OrderedJson& value, std::string path) : value_(value), path_(std::move(path)) {
  if (!value.is_object()) throw invalid_param(path_.empty() ? "body" : path_, "an object", describe_value(value));
}

std::string Fields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Fields::refuse(const char* key, const std::string& expected) const {
  const auto found = value_.find(key);
  throw invalid_param(path_of(key), expected, found == value_.end() ? "nothing" : describe_value(*found));
}

const OrderedJson* Fields::find(const char* key) {
  known_.emplace_back(key);
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(const char* key) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const char* key, int64_t least, int64_t most) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto wide = value->get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) refuse(key, expected);
    number = static_cast<int64_t>(wide);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {  // 1.0 is an integer to JSON Schema and to some clients' JSON writers
    const auto real = value->get<double>();
    if (std::trunc(real) != real || std::abs(real) > 9e15) refuse(key, expected);
    number = static_cast<int64_t>(real);
  } else {
    refuse(key, expected);
  }
  if (number < least || number > most) refuse(key, expected);
  return number;
}

std::optional<double> Fields::number(const char* key, double least, double most) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = "a number from " + digits(least) + " to " + digits(most);
  if (!value->is_number()) refuse(key, expected);
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) refuse(key, expected);
  return number;
}

std::optional<std::string> Fields::string(const char* key, size_t most_bytes) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > most_bytes) {
    throw invalid_param(path_of(key), "at most " + std::to_string(most_bytes) + " bytes",
                        std::to_string(text.size()) + " bytes");
  }
  return text;
}

std::optional<std::string> Fields::word(const char* key, std::initializer_list<const char*> words) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::string expected;
  size_t i = 0;
  for (const char* word : words) {
    if (value->is_string() && value->get_ref<const std::string&>() == word) return word;
    expected += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    expected += '"' + std::string(word) + '"';
    ++i;
  }
  refuse(key, expected);
}

std::vector<std::string> Fields::strings(const char* key, size_t most, size_t most_bytes) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return {};
  const auto take = [&](const OrderedJson& item, const std::string& path) {
    if (!item.is_string()) throw invalid_param(path, "a string", describe_value(item));
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > most_bytes) {
      throw invalid_param(path, "a string of 1 to " + std::to_string(most_bytes) + " bytes",
                          std::to_string(text.size()) + " bytes");
    }
    return text;
  };
  if (value->is_string()) return {take(*value, path_of(key))};
  if (!value->is_array()) refuse(key, "a string or a list of strings");
  if (value->size() > most) {
    throw invalid_param(path_of(key), "at most " + std::to_string(most) + " strings", std::to_string(value->size()));
  }
  std::vector<std::string> taken;
  for (size_t i = 0; i < value->size(); ++i) {
    taken.push_back(take((*value)[i], path_of(key) + "[" + std::to_string(i) + "]"));
  }
  return taken;
}

const OrderedJson* Fields::object(const char* key) {
  const OrderedJson* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, "an object");
  return value;
}

const OrderedJson* Fields::list(const char* key, size_t least, size_t most) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) refuse(key, "a list");
  if (value->size() < least || value->size() > most) {
    throw invalid_param(path_of(key), "a list of " + std::to_string(least) + " to " + std::to_string(most) + " items",
                        std::to_string(value->size()));
  }
  return value;
}

void Fields::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) known_.emplace_back(key);
}

void Fields::unsupported(const char* key, const std::string& why) {
  const OrderedJson* value = find(key);
  if (value == nullptr) return;
  throw ApiError(ApiErrorKind::kInvalid, path_of(key) + ": not supported: " + why, path_of(key),
                 "unsupported_parameter");
}

void Fields::done() const {
  for (const auto& [key, value] : value_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string path = path_of(printable(key, 80));
    throw ApiError(ApiErrorKind::kInvalid, path + ": unknown parameter", path, "unknown_parameter");
  }
}

}  // namespace mdi
