// Quantisers, dense products and the norm.
#include <algorithm>
#include <vector>

#include "engine/golden/ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"

namespace mdi::golden {
namespace {

const Tolerances kEqual = {{Rule::kExact, 0}};
const Tolerances kOneStep = {{Rule::kUlp, 1}};

// Codes and scales are compared as bytes: their values would hide the sign of a zero.
template <class T>
TensorView bytes_of(const std::vector<T>& values) {
  static_assert(sizeof(T) == 1);
  TensorView t;
  t.data = values.data();
  t.dtype = DType::kU8;
  t.rank = 1;
  t.shape[0] = static_cast<int64_t>(values.size());
  return t;
}

void check_bytes(const OpsCase& c, std::string_view part, DType dtype, const TensorView& found, int64_t rows) {
  const int64_t width = rows > 0 ? found.shape[0] / rows : 0;
  TensorView expected = c.in(part, dtype, {rows, width});
  expected.dtype = DType::kU8;
  c.check_against(part, found, expected, kEqual);
}

// The bf16 rows that a product multiplies, from stored codes and scales.
std::vector<bf16> operand(const OpsCase& c, int64_t& m, int64_t& k) {
  const TensorView a = c.in("a", DType::kE4M3, {kAnySize, kAnySize});
  m = a.shape[0], k = a.shape[1];
  const int64_t blocks = (k + 31) / 32;
  const TensorView scale = c.in("a_scale", DType::kE8M0, {m, blocks});
  std::vector<bf16> x(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i) cpu::act_dequant(a.as<e4m3>() + i * k, scale.as<e8m0>() + i * blocks, k, &x[i * k]);
  return x;
}

void check_products(const OpsCase& c, const std::vector<bf16>& x, int64_t m, const LinearWeight& w) {
  cpu::GemmArgs args;
  args.x = x.data();
  args.m = m;
  args.ldx = w.k;
  args.w = w;
  args.ldy = w.n;
  if (c.has("out_f32")) {
    c.in("out_f32", DType::kF32, {m, w.n});
    std::vector<float> y(static_cast<size_t>(m * w.n));
    args.y_f32 = y.data();
    cpu::gemm(c.pool, args);
    args.y_f32 = nullptr;
    c.check("out_f32", view(y), {{Rule::kRowLargest, 1e-5}});
  }
  c.in("out_bf16", DType::kBF16, {m, w.n});
  std::vector<bf16> y(static_cast<size_t>(m * w.n));
  args.y_bf16 = y.data();
  cpu::gemm(c.pool, args);
  c.check("out_bf16", view(y), kOneStep);
}

}  // namespace

void check_act_quant(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t m = x.shape[0], k = x.shape[1], blocks = (k + 31) / 32;
  std::vector<e4m3> q(static_cast<size_t>(m * k));
  std::vector<e8m0> scale(static_cast<size_t>(m * blocks));
  std::vector<bf16> dequantised(static_cast<size_t>(m * k)), at_once(static_cast<size_t>(m * k));
  for (int64_t i = 0; i < m; ++i) {
    cpu::act_quant(x.as<bf16>() + i * k, k, &q[i * k], &scale[i * blocks]);
    cpu::act_dequant(&q[i * k], &scale[i * blocks], k, &dequantised[i * k]);
    cpu::act_quant_dequant(x.as<bf16>() + i * k, k, &at_once[i * k]);
  }
  check_bytes(c, "q", DType::kE4M3, bytes_of(q), m);
  check_bytes(c, "scale", DType::kE8M0, bytes_of(scale), m);
  c.check("dequant", view(dequantised), kEqual);
  c.check_against("dequant_in_place", view(at_once), c.in("dequant", DType::kBF16, {m, k}), kEqual);
}

namespace {

template <class Scale, class Quantise, class Dequantise>
void check_fp4(const OpsCase& c, DType scale_type, int64_t block, Quantise quantise, Dequantise dequantise) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t m = x.shape[0], k = x.shape[1];
  require(c, k % block == 0, "x: expected whole blocks of " + std::to_string(block) + ", found " + shape_text(x));
  std::vector<uint8_t> packed(static_cast<size_t>(m * k / 2));
  std::vector<Scale> scale(static_cast<size_t>(m * k / block));
  std::vector<float> wide(static_cast<size_t>(m * k));
  std::vector<bf16> dequantised(wide.size());
  for (int64_t i = 0; i < m; ++i) {
    quantise(x.as<bf16>() + i * k, k, &packed[i * k / 2], &scale[i * k / block]);
    dequantise(&packed[i * k / 2], &scale[i * k / block], k, &wide[i * k]);
  }
  // The values have at most 6 significant bits: rounding only says what an overflow becomes.
  std::transform(wide.begin(), wide.end(), dequantised.begin(), [](float v) { return to_bf16(v); });
  check_bytes(c, "packed", DType::kI8, bytes_of(packed), m);
  check_bytes(c, "scale", scale_type, bytes_of(scale), m);
  c.check("dequant", view(dequantised), kEqual);
}

}  // namespace

void check_fp4_quant_e8m0(const OpsCase& c) {
  check_fp4<e8m0>(c, DType::kE8M0, 32, cpu::fp4_quant_e8m0, cpu::fp4_dequant_e8m0);
}

void check_fp4_quant_e4m3(const OpsCase& c) {
  check_fp4<e4m3>(c, DType::kE4M3, 16, cpu::fp4_quant_e4m3, cpu::fp4_dequant_e4m3);
}

void check_fp8_gemm(const OpsCase& c) {
  int64_t m = 0, k = 0;
  const std::vector<bf16> x = operand(c, m, k);
  const TensorView b = c.in("b", DType::kE4M3, {kAnySize, k});
  const int64_t n = b.shape[0];
  const TensorView scale = c.in("b_scale", DType::kE8M0, {(n + 31) / 32, (k + 31) / 32});
  check_products(c, x, m, {WeightKind::kE4M3, b.data, scale.as<e8m0>(), n, k});
}

void check_fp4_gemm(const OpsCase& c) {
  int64_t m = 0, k = 0;
  const std::vector<bf16> x = operand(c, m, k);
  require(c, k % 32 == 0, "a: expected whole blocks of 32 columns, found " + std::to_string(k));
  const TensorView b = c.in("b_packed", DType::kI8, {kAnySize, k / 2});
  const int64_t n = b.shape[0];
  const TensorView scale = c.in("b_scale", DType::kE8M0, {n, k / 32});
  check_products(c, x, m, {WeightKind::kE2M1, b.data, scale.as<e8m0>(), n, k});
}

void check_linear_fp8(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t m = x.shape[0], k = x.shape[1];
  const TensorView w = c.in("weight", DType::kE4M3, {kAnySize, k});
  const int64_t n = w.shape[0];
  const TensorView scale = c.in("scale", DType::kE8M0, {(n + 31) / 32, (k + 31) / 32});
  c.in("out", DType::kBF16, {m, n});
  std::vector<bf16> rows(static_cast<size_t>(m * k)), y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) cpu::act_quant_dequant(x.as<bf16>() + i * k, k, &rows[i * k]);
  cpu::GemmArgs args;
  args.x = rows.data();
  args.m = m;
  args.ldx = k;
  args.w = {WeightKind::kE4M3, w.data, scale.as<e8m0>(), n, k};
  args.y_bf16 = y.data();
  args.ldy = n;
  cpu::gemm(c.pool, args);
  c.check("out", view(y), {{Rule::kRelative, 1e-2}});
}

void check_rms_norm(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t m = x.shape[0], n = x.shape[1];
  const TensorView w = c.in("weight", DType::kBF16, {n});
  const auto eps = static_cast<float>(c.number("eps"));
  std::vector<bf16> y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) cpu::rms_norm(x.as<bf16>() + i * n, w.as<bf16>(), n, eps, &y[i * n]);
  c.check("out", view(y), kOneStep);
}

}  // namespace mdi::golden
