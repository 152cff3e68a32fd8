// Rope, hyper-connections, router, experts and attention.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "engine/golden/ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"

namespace mdi::golden {
namespace {

// What the released model has and the cases leave out.
constexpr double kSinkhornIterations = 20;
constexpr double kHcEps = 1e-6;
constexpr int64_t kMaxCopies = 8;

const Tolerances kOneStep = {{Rule::kUlp, 1}};

std::vector<bf16> copy_rows(const TensorView& t) {
  return std::vector<bf16>(t.as<bf16>(), t.as<bf16>() + t.elements());
}

int64_t leading(const TensorView& t, int keep) {
  int64_t n = 1;
  for (int i = 0; i < t.rank - keep; ++i) n *= t.shape[static_cast<size_t>(i)];
  return n;
}

}  // namespace

std::vector<float> rope_table_of(const OpsCase& c) {
  const nlohmann::json* nested = c.object("rope");
  const auto value = [&](const char* key) {
    if (nested == nullptr) return c.number(key);
    const auto found = nested->find(key);
    if (found == nested->end() || !found->is_number()) {
      throw Error(c.op + "." + c.name, std::string("expected a number as parameter 'rope.") + key + "'");
    }
    return found->get<double>();
  };
  cpu::RopeParameters p;
  const double dim = value("dim"), length = value("original_seq_len");
  require(c, dim >= 2 && dim <= 4096 && std::fmod(dim, 2) == 0, "rope: expected an even dim from 2 to 4096");
  require(c, length >= 0 && length <= 1e12, "rope: expected an original_seq_len from 0 to 1e12");
  p.rope_dim = static_cast<int32_t>(dim);
  p.original_seq_len = static_cast<int64_t>(length);
  p.theta = value("theta");
  p.factor = value("factor");
  p.beta_fast = value("beta_fast");
  p.beta_slow = value("beta_slow");
  std::vector<float> frequencies(static_cast<size_t>(p.rope_dim / 2));
  cpu::rope_frequencies(p, frequencies.data());
  return frequencies;
}

void check_rope(const OpsCase& c) {
  const std::vector<float> frequencies = rope_table_of(c);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  const RopeTable table{frequencies.data(), static_cast<int32_t>(2 * pairs)};
  const TensorView positions = c.in("positions", DType::kI32, {kAnySize});
  const int64_t n = positions.shape[0];
  std::vector<float> cos_sin(static_cast<size_t>(n * pairs * 2));
  for (int64_t i = 0; i < n; ++i) cpu::rope_angles(table, positions.as<int32_t>()[i], &cos_sin[i * pairs * 2]);
  c.check("cos_sin", view(cos_sin), {{Rule::kAbsolute, 1e-6}});

  // One vector a position, or one for each head of a position.
  const auto rotate = [&](const TensorView& x, bool inverse) {
    std::vector<bf16> y = copy_rows(x);
    const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
    require(c, dim >= 2 * pairs,
            "expected vectors of at least " + std::to_string(2 * pairs) + ", found " + shape_text(x));
    const int64_t heads = x.rank == 4 ? x.shape[2] : 1;
    for (int64_t row = 0; row < leading(x, 1); ++row) {
      const int64_t at = row / heads % n;
      cpu::rope_apply(&cos_sin[at * pairs * 2], table.rope_dim, &y[row * dim], dim, inverse);
    }
    return y;
  };
  const TensorView x3 = c.in("x3", DType::kBF16, {kAnySize, n, kAnySize});
  c.check("forward3", view(rotate(x3, false)), kOneStep);
  const TensorView x4 = c.in("x4", DType::kBF16, {kAnySize, n, kAnySize, kAnySize});
  c.check("forward4", view(rotate(x4, false)), kOneStep);
  c.check("inverse4", view(rotate(x4, true)), kOneStep);
}

void check_hc_split(const OpsCase& c) {
  const TensorView base = c.in("base", DType::kF32, {kAnySize});
  int64_t hc = 1;
  while (hc < kMaxCopies && (2 + hc) * hc < base.shape[0]) ++hc;
  const int64_t m = (2 + hc) * hc;
  require(c, m == base.shape[0], "base: expected (2 + hc) * hc values for hc of 1 to 8, found " + shape_text(base));
  const TensorView scale = c.in("scale", DType::kF32, {3});
  const TensorView mixes = c.in("mixes", DType::kF32, {kAnySize, kAnySize, m});
  const int64_t n = leading(mixes, 1);
  const auto iterations = static_cast<int32_t>(std::clamp(c.number("iters", kSinkhornIterations), 1.0, 1000.0));
  const auto eps = static_cast<float>(c.number("eps", kHcEps));
  std::vector<float> pre(static_cast<size_t>(n * hc)), post(pre.size()), comb(static_cast<size_t>(n * hc * hc));
  for (int64_t i = 0; i < n; ++i) {
    cpu::hc_split(mixes.as<float>() + i * m, scale.as<float>(), base.as<float>(), static_cast<int32_t>(hc), iterations,
                  eps, &pre[i * hc], &post[i * hc], &comb[i * hc * hc]);
  }
  c.check("pre", view(pre), {{Rule::kAbsolute, 1e-5}});
  c.check("post", view(post), {{Rule::kAbsolute, 1e-5}});
  c.check("comb", view(comb), {{Rule::kAbsolute, 1e-5}});
}

void check_hc_pre(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize, kAnySize, kAnySize});
  const int64_t n = leading(x, 2), hc = x.shape[2], dim = x.shape[3];
  require(c, hc <= kMaxCopies, "x: expected at most 8 copies, found " + shape_text(x));
  const TensorView pre = c.in("pre", DType::kF32, {x.shape[0], x.shape[1], hc});
  std::vector<bf16> out(static_cast<size_t>(n * dim));
  for (int64_t i = 0; i < n; ++i) {
    cpu::hc_pre(x.as<bf16>() + i * hc * dim, pre.as<float>() + i * hc, static_cast<int32_t>(hc),
                static_cast<int32_t>(dim), &out[i * dim]);
  }
  c.check("out", view(out), kOneStep);
}

void check_hc_post(const OpsCase& c) {
  const TensorView h = c.in("residual", DType::kBF16, {kAnySize, kAnySize, kAnySize, kAnySize});
  const int64_t n = leading(h, 2), hc = h.shape[2], dim = h.shape[3];
  require(c, hc <= kMaxCopies, "residual: expected at most 8 copies, found " + shape_text(h));
  const TensorView y = c.in("x", DType::kBF16, {h.shape[0], h.shape[1], dim});
  const TensorView post = c.in("post", DType::kF32, {h.shape[0], h.shape[1], hc});
  const TensorView comb = c.in("comb", DType::kF32, {h.shape[0], h.shape[1], hc, hc});
  std::vector<bf16> out(static_cast<size_t>(n * hc * dim));
  for (int64_t i = 0; i < n; ++i) {
    cpu::hc_post(y.as<bf16>() + i * dim, h.as<bf16>() + i * hc * dim, post.as<float>() + i * hc,
                 comb.as<float>() + i * hc * hc, static_cast<int32_t>(hc), static_cast<int32_t>(dim),
                 &out[i * hc * dim]);
  }
  c.check("out", view(out), kOneStep);
}

void check_gate(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t n = x.shape[0], dim = x.shape[1];
  const TensorView w = c.in("weight", DType::kBF16, {kAnySize, dim});
  const int64_t experts = w.shape[0], topk = c.integer("topk", 1, experts);
  const auto scale = static_cast<float>(c.number("route_scale"));
  const auto temperature = static_cast<float>(c.number("gate_temp", 1));
  std::vector<float> z(static_cast<size_t>(n * experts)), biased(static_cast<size_t>(experts));
  cpu::GemmArgs args;
  args.x = x.as<bf16>();
  args.m = n;
  args.ldx = dim;
  args.w = {WeightKind::kBF16, w.data, nullptr, experts, dim};
  args.y_f32 = z.data();
  args.ldy = experts;
  cpu::gemm(c.pool, args);

  const TensorView text = c.in("bias", DType::kF32, {experts});
  const auto select = [&](const std::string& name, const TensorView* image_bias, const uint8_t* is_image) {
    std::vector<int32_t> index(static_cast<size_t>(n * topk));
    std::vector<float> weight(index.size());
    for (int64_t i = 0; i < n; ++i) {
      const TensorView& bias = is_image != nullptr && is_image[i] != 0 ? *image_bias : text;
      cpu::gate_select(&z[i * experts], bias.as<float>(), static_cast<int32_t>(experts), static_cast<int32_t>(topk),
                       scale, temperature, biased.data(), &index[i * topk], &weight[i * topk]);
    }
    c.check(name + "_indices", view(index), {{Rule::kExact, 0}});
    c.check(name + "_weights", view(weight), {{Rule::kAbsolute, 1e-5}});
  };
  select("text", nullptr, nullptr);
  if (!c.has("bias_vl")) return;
  const TensorView image = c.in("bias_vl", DType::kF32, {experts});
  select("mixed", &image, c.in("image_mask", DType::kU8, {n}).as<uint8_t>());
}

namespace {

LinearWeight expert_weight(const OpsCase& c, const std::string& name, int64_t n, int64_t k) {
  require(c, k % 32 == 0, name + ": expected whole blocks of 32 columns, found " + std::to_string(k));
  if (c.op == "expert_fp8") {
    const TensorView w = c.in(name + ".weight", DType::kE4M3, {n, k});
    const int64_t rows = w.shape[0];
    return {WeightKind::kE4M3, w.data, c.in(name + ".scale", DType::kE8M0, {(rows + 31) / 32, k / 32}).as<e8m0>(), rows,
            k};
  }
  const TensorView w = c.in(name + ".weight", DType::kI8, {n, k / 2});
  const int64_t rows = w.shape[0];
  return {WeightKind::kE2M1, w.data, c.in(name + ".scale", DType::kE8M0, {rows, k / 32}).as<e8m0>(), rows, k};
}

std::vector<bf16> quantised_product(const OpsCase& c, const bf16* x, int64_t m, const LinearWeight& w) {
  std::vector<bf16> rows(static_cast<size_t>(m * w.k)), y(static_cast<size_t>(m * w.n));
  for (int64_t i = 0; i < m; ++i) cpu::act_quant_dequant(x + i * w.k, w.k, &rows[i * w.k]);
  cpu::GemmArgs args;
  args.x = rows.data();
  args.m = m;
  args.ldx = w.k;
  args.w = w;
  args.y_bf16 = y.data();
  args.ldy = w.n;
  cpu::gemm(c.pool, args);
  return y;
}

}  // namespace

void check_expert(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t m = x.shape[0], dim = x.shape[1];
  const LinearWeight w1 = expert_weight(c, "w1", kAnySize, dim), w3 = expert_weight(c, "w3", w1.n, dim);
  const LinearWeight w2 = expert_weight(c, "w2", dim, w1.n);
  const TensorView route = c.in("route_weight", DType::kF32, {m, 1});
  const auto limit = static_cast<float>(c.number("swiglu_limit"));
  require(c, limit > 0, "swiglu_limit: expected a positive number");
  const std::vector<bf16> gate = quantised_product(c, x.as<bf16>(), m, w1);
  const std::vector<bf16> up = quantised_product(c, x.as<bf16>(), m, w3);
  const auto run = [&](bool weighted) {
    std::vector<bf16> t(gate.size());
    for (int64_t i = 0; i < m; ++i) {
      cpu::swiglu(&gate[i * w1.n], &up[i * w1.n], w1.n, limit, weighted ? route.as<float>()[i] : 1.0f, &t[i * w1.n]);
    }
    return quantised_product(c, t.data(), m, w2);
  };
  c.check("out", view(run(true)), {{Rule::kRelative, 1e-2}});
  c.check("out_unweighted", view(run(false)), {{Rule::kRelative, 1e-2}});
}

void check_sparse_attention(const OpsCase& c) {
  const TensorView q = c.in("q", DType::kBF16, {kAnySize, kAnySize, kAnySize, kAnySize});
  const int64_t batch = q.shape[0], queries = q.shape[1], heads = q.shape[2], dim = q.shape[3];
  require(c, dim % 32 == 0 && dim > 0, "q: expected heads of whole blocks of 32, found " + shape_text(q));
  const TensorView kv = c.in("kv", DType::kBF16, {batch, kAnySize, dim});
  const TensorView idxs = c.in("idxs", DType::kI32, {batch, queries, kAnySize});
  const TensorView sink = c.in("sink", DType::kF32, {heads});
  const auto scale = static_cast<float>(c.number("softmax_scale"));
  const int64_t rows = kv.shape[1], count = idxs.shape[2];
  std::vector<bf16> out(static_cast<size_t>(q.elements()));
  std::vector<float> gathered(static_cast<size_t>(count * dim));
  std::vector<uint8_t> valid(static_cast<size_t>(count));
  for (int64_t i = 0; i < batch * queries; ++i) {
    for (int64_t t = 0; t < count; ++t) {
      const int64_t at = idxs.as<int32_t>()[i * count + t];
      require(c, at < rows, "idxs: expected less than " + std::to_string(rows) + ", found " + std::to_string(at));
      valid[t] = at >= 0 ? 1 : 0;
      if (at < 0) continue;
      const bf16* row = kv.as<bf16>() + (i / queries * rows + at) * dim;
      std::transform(row, row + dim, &gathered[t * dim], [](bf16 v) { return to_float(v); });
    }
    cpu::attend(q.as<bf16>() + i * heads * dim, gathered.data(), valid.data(), count, sink.as<float>(), scale,
                static_cast<int32_t>(heads), static_cast<int32_t>(dim), &out[i * heads * dim]);
  }
  c.check("out", view(out), {{Rule::kRelative, 4e-3}});
}

}  // namespace mdi::golden
