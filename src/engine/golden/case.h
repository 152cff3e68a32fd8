// One case of one operator: its stored inputs and outputs (`operator.case.part`), its scalar parameters, and where to
// report.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "engine/golden/compare.h"
#include "engine/golden/file.h"
#include "engine/golden/report.h"

namespace mdi::golden {

struct OpsCase {
  GoldenFile& file;
  const nlohmann::json& parameters;  // the whole params.json
  Report& report;
  ThreadPool& pool;
  std::string folder;  // "ops/", before the names of quantities
  std::string op;      // "sparse_attn"
  std::string name;    // "case0"

  // Tensor `part` of the case. Throws mdi::Error as GoldenFile::get does.
  TensorView in(std::string_view part, DType dtype, std::initializer_list<int64_t> shape) const;
  bool has(std::string_view part) const;
  // A parameter of the case, else of the operator. Throws mdi::Error when it is missing or not a number.
  double number(std::string_view key) const;
  double number(std::string_view key, double absent) const;
  // An integer parameter, refused outside [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  std::vector<int64_t> integers(std::string_view key) const;  // a list of at most 1,000
  // The parameters of a named part ("rope"), or of the case where it has none.
  const nlohmann::json* object(std::string_view key) const;
  std::string text(std::string_view key) const;  // "" when absent

  std::string label(std::string_view part) const;  // "ops/sparse_attn.case0.out"
  // Compares with the stored `part`, whatever its shape; row 0: its last axis.
  void check(std::string_view part, const TensorView& found, const Tolerances& tolerances, int64_t row = 0) const;
  // The same against values that are not a tensor of the file.
  void check_against(std::string_view part, const TensorView& found, const TensorView& expected,
                     const Tolerances& tolerances, int64_t row = 0) const;
};

using CaseCheck = void (*)(const OpsCase&);

// Throws mdi::Error naming the case unless `condition`.
void require(const OpsCase& c, bool condition, std::string_view what);

}  // namespace mdi::golden
