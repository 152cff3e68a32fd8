// The draft model's heads, and the plan of an image's grid.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/mapped_file.h"
#include "core/printable.h"
#include "engine/golden/ops.h"
#include "kernels/cpu/gemm.h"
#include "vision/grid.h"

namespace mdi::golden {
namespace {

std::vector<float> product_of_bf16(const OpsCase& c, const std::vector<bf16>& x, int64_t m, const TensorView& w) {
  const int64_t n = w.shape[0], k = w.shape[1];
  std::vector<float> y(static_cast<size_t>(m * n));
  cpu::gemm(c.pool, {.x = x.data(),
                     .m = m,
                     .ldx = k,
                     .w = {WeightKind::kBF16, w.data, nullptr, n, k},
                     .y_f32 = y.data(),
                     .y_bf16 = nullptr,
                     .ldy = n});
  return y;
}

const Tolerances kFp32Product = {{Rule::kRowLargest, 1e-5}};

}  // namespace

void check_markov_head(const OpsCase& c) {
  const TensorView embed = c.in("embed", DType::kBF16, {kAnySize, kAnySize});
  const int64_t vocab = embed.shape[0], rank = embed.shape[1];
  const TensorView head = c.in("head", DType::kBF16, {kAnySize, rank});
  const TensorView tokens = c.in("tokens", DType::kI32, {kAnySize});
  const int64_t n = tokens.shape[0];
  std::vector<bf16> rows;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t token = tokens.as<int32_t>()[i];
    require(c, token >= 0 && token < vocab, "tokens: expected rows of embed, found " + std::to_string(token));
    rows.insert(rows.end(), embed.as<bf16>() + token * rank, embed.as<bf16>() + (token + 1) * rank);
  }
  c.check("token_embed", view(rows), {{Rule::kExact, 0}});
  c.in("logit_bias", DType::kF32, {n, head.shape[0]});
  c.check("logit_bias", view(product_of_bf16(c, rows, n, head)), kFp32Product);
}

void check_confidence_head(const OpsCase& c) {
  const TensorView hidden = c.in("hidden", DType::kBF16, {kAnySize, kAnySize});
  const int64_t n = hidden.shape[0], dim = hidden.shape[1];
  const TensorView embed = c.in("markov_embed", DType::kBF16, {n, kAnySize});
  const int64_t rank = embed.shape[1];
  const TensorView proj = c.in("proj", DType::kBF16, {1, dim + rank});
  std::vector<bf16> rows;
  for (int64_t i = 0; i < n; ++i) {
    rows.insert(rows.end(), hidden.as<bf16>() + i * dim, hidden.as<bf16>() + (i + 1) * dim);
    rows.insert(rows.end(), embed.as<bf16>() + i * rank, embed.as<bf16>() + (i + 1) * rank);
  }
  c.check("out", view(product_of_bf16(c, rows, n, proj)), kFp32Product, n);
}

namespace {

constexpr size_t kGridColumns = 6;  // width, height, token rows, token columns, prepared height and width

int64_t integer(const nlohmann::json& value, const std::string& where) {
  if (!value.is_number_integer()) throw Error(where, "expected integers, found " + printable(value.dump(), 40));
  return value.get<int64_t>();
}

void check_grid_table(const std::string& label, const nlohmann::json& table, Report& report) {
  ImageRules rules;
  rules.patch = static_cast<int32_t>(integer(table.at("patch_size"), label));
  rules.downsample = static_cast<int32_t>(integer(table.at("downsample_ratio"), label));
  rules.max_tokens = static_cast<int32_t>(integer(table.at("max_image_tokens"), label));
  rules.min_pixels = integer(table.at("min_pixels"), label);
  const nlohmann::json& ratio = table.at("max_wh_ratio");
  if (!ratio.is_null()) rules.max_wh_ratio = ratio.get<double>();
  if (rules.patch < 1 || rules.downsample < 1)
    throw Error(label, "expected a positive patch_size and downsample_ratio");
  std::vector<int64_t> expected, found;
  for (const nlohmann::json& row : table.at("rows")) {
    if (!row.is_array() || row.size() != kGridColumns) throw Error(label, "expected rows of 6 numbers");
    std::vector<int64_t> wanted;
    for (size_t i = 2; i < kGridColumns; ++i) wanted.push_back(integer(row[i], label));
    // -1: the reference rejects the size.
    const bool rejected = std::find(wanted.begin(), wanted.end(), -1) != wanted.end();
    if (rejected) wanted.assign(kGridColumns - 2, -1);
    expected.insert(expected.end(), wanted.begin(), wanted.end());
    try {
      const ImageGrid grid = plan_grid(integer(row[0], label), integer(row[1], label), rules);
      // A size may have a grid on which nothing of the image would be left.
      if (rejected) place_image(integer(row[0], label), integer(row[1], label), grid);
      for (int32_t v : {grid.token_rows, grid.token_cols, grid.height, grid.width}) found.push_back(v);
    } catch (const Error&) {
      found.insert(found.end(), kGridColumns - 2, -1);
    }
  }
  const auto rows = static_cast<int64_t>(expected.size() / (kGridColumns - 2));
  report.add(compare(label, view(found, {rows, 4}), view(expected, {rows, 4}), {{Rule::kExact, 0}}));
}

}  // namespace

void check_image_grid(const std::filesystem::path& file, const std::string& folder, Report& report) {
  const std::string label = folder + "image_grid";
  try {
    const MappedFile text(file);
    const nlohmann::json tables = parse_json(text.text(), file.filename().string());
    if (!tables.is_object()) throw Error(label, "expected an object");
    for (const auto& [name, table] : tables.items()) {
      if (table.is_object()) check_grid_table(label + "." + printable(name), table, report);
    }
  } catch (const std::exception& e) {
    report.fail(label, e.what());
  }
}

}  // namespace mdi::golden
