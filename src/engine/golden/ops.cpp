#include "engine/golden/ops.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/printable.h"

namespace mdi::golden {
namespace {

struct Operator {
  std::string_view name;
  CaseCheck check;
};

constexpr Operator kOperators[] = {
    {"act_quant", check_act_quant},
    {"fp4_quant_e8m0_32", check_fp4_quant_e8m0},
    {"fp4_quant_e4m3_16", check_fp4_quant_e4m3},
    {"fp8_gemm", check_fp8_gemm},
    {"fp4_gemm", check_fp4_gemm},
    {"linear_fp8", check_linear_fp8},
    {"rmsnorm", check_rms_norm},
    {"rope", check_rope},
    {"hc_split_sinkhorn", check_hc_split},
    {"hc_pre", check_hc_pre},
    {"hc_post", check_hc_post},
    {"gate", check_gate},
    {"expert_fp4", check_expert},
    {"expert_fp8", check_expert},
    {"sparse_attn", check_sparse_attention},
    {"select_candidates", check_select_candidates},
    {"compress_index", check_compress_index},
    {"engram_hash", check_engram_hash},
    {"engram", check_engram},
    {"markov_head", check_markov_head},
    {"confidence_head", check_confidence_head},
};

const Operator* find_operator(std::string_view name) {
  for (const Operator& op : kOperators) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

// "operator.case.part": the first two. Empty when there are not two dots.
std::pair<std::string, std::string> split_name(const std::string& tensor) {
  const size_t first = tensor.find('.');
  if (first == std::string::npos) return {};
  const size_t second = tensor.find('.', first + 1);
  if (second == std::string::npos) return {};
  return {tensor.substr(0, first), tensor.substr(first + 1, second - first - 1)};
}

void check_case(GoldenFile& file, const nlohmann::json& parameters, const std::string& folder, const std::string& op,
                const std::string& name, ThreadPool& pool, Report& report) {
  const std::string label = folder + op + "." + name;
  const std::string prefix = op + "." + name + ".";
  const Operator* known = find_operator(op);
  if (known == nullptr) {
    report.skip(label, "no such operator in this build");
    for (const std::string& tensor : file.names()) {
      if (tensor.substr(0, prefix.size()) == prefix) file.mark_used(tensor);
    }
    return;
  }
  try {
    known->check({file, parameters, report, pool, folder, op, name});
  } catch (const std::exception& e) {
    report.fail(label, e.what());
    return;
  }
  // What nothing looked at is said, so that a new part of a case does not pass unseen.
  for (const std::string& tensor : file.unused()) {
    if (tensor.substr(0, prefix.size()) == prefix) report.skip(folder + tensor, "nothing compares this tensor");
  }
}

}  // namespace

void check_ops(const std::filesystem::path& tensors, const std::filesystem::path& parameters, const std::string& folder,
               ThreadPool& pool, Report& report) {
  try {
    GoldenFile file(tensors, tensors.filename().string());
    nlohmann::json values = nlohmann::json::object();
    if (std::filesystem::exists(parameters)) {
      const MappedFile text(parameters);
      values = parse_json(text.text(), parameters.filename().string());
    }
    std::set<std::pair<std::string, std::string>> cases;
    for (const std::string& tensor : file.names()) {
      const auto name = split_name(tensor);
      if (name.first.empty()) {
        report.skip(folder + printable(tensor), "expected a name of the form operator.case.part");
      } else {
        cases.insert(name);
      }
    }
    for (const auto& [op, name] : cases) {
      if (!report.may_want(folder + op + "." + name)) continue;
      check_case(file, values, folder, op, name, pool, report);
    }
  } catch (const std::exception& e) {
    report.fail(folder + tensors.filename().string(), e.what());
  }
}

}  // namespace mdi::golden
