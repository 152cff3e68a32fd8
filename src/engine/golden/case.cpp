#include "engine/golden/case.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/printable.h"

namespace mdi::golden {
namespace {

std::string full_name(const OpsCase& c, std::string_view part) { return c.op + "." + c.name + "." + std::string(part); }

// The case's own parameters come before those of its operator, and these before those of a family of operators
// ("expert" for expert_fp4 and expert_fp8).
const nlohmann::json* find(const OpsCase& c, std::string_view key) {
  const std::string family = c.op.substr(0, c.op.find('_'));
  for (const std::string& owner : {c.op + "." + c.name, c.op, family}) {
    const auto group = c.parameters.find(owner);
    if (group == c.parameters.end() || !group->is_object()) continue;
    const auto value = group->find(std::string(key));
    if (value != group->end()) return &*value;
  }
  return nullptr;
}

}  // namespace

TensorView OpsCase::in(std::string_view part, DType dtype, std::initializer_list<int64_t> shape) const {
  return file.get(full_name(*this, part), dtype, shape);
}

bool OpsCase::has(std::string_view part) const { return file.has(full_name(*this, part)); }

double OpsCase::number(std::string_view key) const {
  const nlohmann::json* value = find(*this, key);
  if (value == nullptr || !value->is_number()) {
    throw Error(op + "." + name, "expected a number as parameter '" + std::string(key) + "', found " +
                                     (value == nullptr ? "none" : printable(value->dump(), 40)));
  }
  return value->get<double>();
}

double OpsCase::number(std::string_view key, double absent) const {
  return find(*this, key) == nullptr ? absent : number(key);
}

int64_t OpsCase::integer(std::string_view key, int64_t low, int64_t high) const {
  const double value = number(key);
  if (!(value >= static_cast<double>(low) && value <= static_cast<double>(high)) || value != std::floor(value)) {
    throw Error(op + "." + name, "parameter '" + std::string(key) + "': expected an integer from " +
                                     std::to_string(low) + " to " + std::to_string(high) + ", found " +
                                     std::to_string(value));
  }
  return static_cast<int64_t>(value);
}

std::vector<int64_t> OpsCase::integers(std::string_view key) const {
  const nlohmann::json* value = find(*this, key);
  std::vector<int64_t> list;
  if (value != nullptr && value->is_array() && value->size() <= 1000) {
    for (const nlohmann::json& entry : *value) {
      if (entry.is_number_integer()) list.push_back(entry.get<int64_t>());
    }
    if (list.size() == value->size()) return list;
  }
  throw Error(op + "." + name, "expected a list of integers as parameter '" + std::string(key) + "'");
}

const nlohmann::json* OpsCase::object(std::string_view key) const {
  const nlohmann::json* value = find(*this, key);
  return value != nullptr && value->is_object() ? value : nullptr;
}

std::string OpsCase::text(std::string_view key) const {
  const nlohmann::json* value = find(*this, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::string OpsCase::label(std::string_view part) const { return folder + full_name(*this, part); }

void OpsCase::check(std::string_view part, const TensorView& found, const Tolerances& tolerances, int64_t row) const {
  check_against(part, found, file.get(full_name(*this, part)), tolerances, row);
}

void OpsCase::check_against(std::string_view part, const TensorView& found, const TensorView& expected,
                            const Tolerances& tolerances, int64_t row) const {
  report.add(compare(label(part), found, expected, tolerances, row));
}

void require(const OpsCase& c, bool condition, std::string_view what) {
  if (!condition) throw Error(c.op + "." + c.name, what);
}

}  // namespace mdi::golden
