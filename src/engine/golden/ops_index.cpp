// The compressor, the indexer and both selections.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"
#include "engine/golden/ops.h"
#include "engine/golden/selection.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"

namespace mdi::golden {
namespace {

constexpr int64_t kMaxRows = 100000;

// The mask over positions [0, width) of the blocks that are kept.
void mask_of_blocks(const std::vector<int32_t>& blocks, int64_t block_size, int64_t width, uint8_t* mask) {
  std::fill(mask, mask + width, uint8_t{0});
  for (int64_t b : blocks) {
    if (b < 0) continue;
    const int64_t begin = std::min(width, b * block_size), end = std::min(width, begin + block_size);
    std::fill(mask + begin, mask + end, uint8_t{1});
  }
}

bf16 minus_infinity() { return to_bf16(-std::numeric_limits<float>::infinity()); }

// Parameters of the two selections.
struct Selection {
  int64_t block_size = 0, topk_blocks = 0;
};

Selection selection_of(const OpsCase& c) {
  return {c.integer("block_size", 1, kMaxRows), c.integer("topk_blocks", 1, kMaxRows)};
}

}  // namespace

// Masks from stored scores: exact. In prefill row r sees r + 1 positions, in decode all.
void check_select_candidates(const OpsCase& c) {
  const TensorView scores = c.in("scores", DType::kBF16, {kAnySize, kAnySize, kAnySize});
  const int64_t rows = scores.shape[1], width = scores.shape[2];
  const Selection s = selection_of(c);
  const int64_t length = static_cast<int64_t>(c.number("compress_len", 0));
  require(c, length >= 0 && length <= width, "compress_len: expected at most the scores' width");
  std::vector<uint8_t> mask(static_cast<size_t>(scores.elements()));
  std::vector<int32_t> blocks(static_cast<size_t>(s.topk_blocks));
  for (int64_t i = 0; i < scores.shape[0] * rows; ++i) {
    const int64_t visible = length > 0 ? length : std::min(width, i % rows + 1);
    cpu::select_candidates(scores.as<bf16>() + i * width, visible, static_cast<int32_t>(s.block_size),
                           static_cast<int32_t>(s.topk_blocks), blocks.data());
    mask_of_blocks(blocks, s.block_size, width, &mask[i * width]);
  }
  c.check("mask", view(mask), {{Rule::kExact, 0}});
}

namespace {

// What the cases of one file share: a layer without keys of its own uses those of the owner before it.
struct Keys {
  int64_t dim = 0, ratio = 0;
  std::vector<float> rows;  // [n, dim] dequantised
};

// The stored scores, selections and candidates of a run of queries.
struct Queries {
  std::string part;  // "prefill", "decode0"
  int64_t first = 0, count = 0, offset = 0;
  TensorView scores, idxs;  // [count, width], [count, k]
};

struct Indexer {
  int64_t dim = 0, heads = 0, key_dim = 0, ratio = 0;
  std::vector<float> iq;       // [n, heads, key_dim]
  std::vector<float> weights;  // [n, heads]
};

float eps_of(const OpsCase& c) { return static_cast<float>(c.number("eps", 1e-20)); }

// Latents of all groups of the input, then the index keys. Checks `latent` of prefill and of the decode steps.
void check_compressor(const OpsCase& c, const TensorView& x, int64_t prefill, int64_t steps, Keys& keys) {
  const int64_t n = x.shape[0], dim = x.shape[1];
  const int64_t ratio = keys.ratio, groups = n / ratio;
  const TensorView wkv = c.in("weights.compressor.wkv.weight", DType::kBF16, {kAnySize, dim});
  const int64_t head_dim = wkv.shape[0];
  const TensorView norm = c.in("weights.compressor.norm.weight", DType::kBF16, {head_dim});
  std::vector<bf16> latent(static_cast<size_t>(std::max<int64_t>(n, 1) * head_dim));

  cpu::GemmArgs args;
  args.x = x.as<bf16>();
  args.m = n;
  args.ldx = dim;
  args.ldy = head_dim;
  args.w = {WeightKind::kBF16, wkv.data, nullptr, head_dim, dim};
  if (ratio == 1) {
    args.y_bf16 = latent.data();
    cpu::gemm(c.pool, args);
  } else {
    std::vector<float> a(static_cast<size_t>(n * head_dim)), g(a.size());
    args.y_f32 = a.data();
    cpu::gemm(c.pool, args);
    args.w.data = c.in("weights.compressor.wgate.weight", DType::kBF16, {head_dim, dim}).data;
    args.y_f32 = g.data();
    cpu::gemm(c.pool, args);
    for (int64_t j = 0; j < groups; ++j) {
      const int64_t first = 2 * j * head_dim, second = first + head_dim;
      cpu::compress_pair(&a[first], &g[first], &a[second], &g[second], head_dim, &latent[j * head_dim]);
    }
  }
  for (int64_t j = 0; j < groups; ++j) {
    cpu::rms_norm(&latent[j * head_dim], norm.as<bf16>(), head_dim, eps_of(c), &latent[j * head_dim]);
  }
  const Tolerances tolerance = {{Rule::kRelative, 1e-2}};
  const auto rows_of_latent = [&](int64_t first, int64_t count) {
    return std::vector<bf16>(latent.begin() + first * head_dim, latent.begin() + (first + count) * head_dim);
  };
  c.check("prefill.latent", view(rows_of_latent(0, prefill / ratio)), tolerance);
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t length = prefill + s + 1;
    const std::string part = "decode" + std::to_string(s) + ".latent";
    if (length % ratio == 0) c.check(part, view(rows_of_latent(length / ratio - 1, 1)), tolerance);
  }

  const TensorView wk = c.in("weights.indexer.wk.weight", DType::kBF16, {kAnySize, head_dim});
  keys.dim = wk.shape[0];
  require(c, keys.dim % 32 == 0, "weights.indexer.wk.weight: expected keys of whole blocks of 32");
  const TensorView k_norm = c.in("weights.indexer.k_norm.weight", DType::kBF16, {keys.dim});
  std::vector<bf16> key(static_cast<size_t>(std::max<int64_t>(groups, 1) * keys.dim));
  args = {};
  args.x = latent.data();
  args.m = groups;
  args.ldx = head_dim;
  args.w = {WeightKind::kBF16, wk.data, nullptr, keys.dim, head_dim};
  args.y_bf16 = key.data();
  args.ldy = keys.dim;
  cpu::gemm(c.pool, args);
  const std::vector<float> frequencies = rope_table_of(c);
  const RopeTable table{frequencies.data(), static_cast<int32_t>(2 * frequencies.size())};
  require(c, table.rope_dim <= keys.dim, "rope: expected at most the keys' size");
  std::vector<float> cos_sin(static_cast<size_t>(table.rope_dim));
  std::vector<uint8_t> packed(static_cast<size_t>(keys.dim / 2));
  std::vector<e8m0> scale(static_cast<size_t>(keys.dim / 32));
  keys.rows.assign(static_cast<size_t>(groups * keys.dim), 0);
  for (int64_t j = 0; j < groups; ++j) {
    bf16* row = &key[j * keys.dim];
    cpu::rms_norm(row, k_norm.as<bf16>(), keys.dim, eps_of(c), row);
    cpu::rope_angles(table, static_cast<int32_t>(j * ratio), cos_sin.data());
    cpu::rope_apply(cos_sin.data(), table.rope_dim, row, keys.dim, false);
    cpu::fp4_quant_e8m0(row, keys.dim, packed.data(), scale.data());
    cpu::fp4_dequant_e8m0(packed.data(), scale.data(), keys.dim, &keys.rows[j * keys.dim]);
  }
  const Tolerances key_tolerance = {{Rule::kMedianRow, 1e-2}, {Rule::kRelative, 5e-2}};
  const auto first_keys = [&](int64_t count) {
    return std::vector<float>(keys.rows.begin(), keys.rows.begin() + count * keys.dim);
  };
  c.check("prefill.index_k", view(first_keys(prefill / ratio)), key_tolerance);
  c.check("final.index_k", view(first_keys(groups)), key_tolerance);
}

Indexer make_indexer(const OpsCase& c, const TensorView& x, const Keys& keys) {
  Indexer ix;
  const int64_t n = x.shape[0], dim = x.shape[1];
  ix.dim = dim;
  ix.key_dim = keys.dim;
  ix.ratio = keys.ratio;
  const TensorView proj = c.in("weights.indexer.weights_proj.weight", DType::kBF16, {kAnySize, dim});
  ix.heads = proj.shape[0];
  const TensorView qr = c.in("qr", DType::kBF16, {n, kAnySize});
  const int64_t rank = qr.shape[1], out = ix.heads * ix.key_dim;
  require(c, rank % 32 == 0, "qr: expected whole blocks of 32 columns, found " + shape_text(qr));
  const TensorView wq = c.in("weights.indexer.wq_b.weight", DType::kE4M3, {out, rank});
  const TensorView wq_scale = c.in("weights.indexer.wq_b.scale", DType::kE8M0, {(out + 31) / 32, rank / 32});

  std::vector<bf16> rows(static_cast<size_t>(n * rank)), q(static_cast<size_t>(n * out));
  for (int64_t i = 0; i < n; ++i) cpu::act_quant_dequant(qr.as<bf16>() + i * rank, rank, &rows[i * rank]);
  cpu::GemmArgs args;
  args.x = rows.data();
  args.m = n;
  args.ldx = rank;
  args.w = {WeightKind::kE4M3, wq.data, wq_scale.as<e8m0>(), out, rank};
  args.y_bf16 = q.data();
  args.ldy = out;
  cpu::gemm(c.pool, args);
  const std::vector<float> frequencies = rope_table_of(c);
  const RopeTable table{frequencies.data(), static_cast<int32_t>(2 * frequencies.size())};
  std::vector<float> cos_sin(static_cast<size_t>(table.rope_dim));
  std::vector<uint8_t> packed(static_cast<size_t>(ix.key_dim / 2));
  std::vector<e8m0> scale(static_cast<size_t>(ix.key_dim / 32));
  ix.iq.resize(q.size());
  for (int64_t i = 0; i < n; ++i) {
    cpu::rope_angles(table, static_cast<int32_t>(i), cos_sin.data());
    for (int64_t h = 0; h < ix.heads; ++h) {
      bf16* head = &q[i * out + h * ix.key_dim];
      cpu::rope_apply(cos_sin.data(), table.rope_dim, head, ix.key_dim, false);
      cpu::fp4_quant_e8m0(head, ix.key_dim, packed.data(), scale.data());
      cpu::fp4_dequant_e8m0(packed.data(), scale.data(), ix.key_dim, &ix.iq[i * out + h * ix.key_dim]);
    }
  }
  std::vector<bf16> w(static_cast<size_t>(n * ix.heads));
  args = {};
  args.x = x.as<bf16>();
  args.m = n;
  args.ldx = dim;
  args.w = {WeightKind::kBF16, proj.data, nullptr, ix.heads, dim};
  args.y_bf16 = w.data();
  args.ldy = ix.heads;
  cpu::gemm(c.pool, args);
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(ix.key_dim * ix.heads)));
  ix.weights.resize(w.size());
  std::transform(w.begin(), w.end(), ix.weights.begin(), [&](bf16 v) { return round_bf16(to_float(v) * factor); });
  return ix;
}

// Scores of the visible keys, -inf elsewhere and where `allowed` (a mask like the scores, or null) is 0.
std::vector<bf16> own_scores(const Indexer& ix, const Keys& keys, const Queries& q, const uint8_t* allowed) {
  const int64_t width = q.scores.shape[1];
  std::vector<bf16> scores(static_cast<size_t>(q.count * width), minus_infinity());
  for (int64_t i = 0; i < q.count; ++i) {
    const int64_t p = q.first + i, visible = std::min(width, (p + 1) / ix.ratio);
    cpu::index_scores(&ix.iq[p * ix.heads * ix.key_dim], &ix.weights[p * ix.heads], keys.rows.data(), visible,
                      static_cast<int32_t>(ix.heads), static_cast<int32_t>(ix.key_dim), &scores[i * width]);
    for (int64_t t = 0; allowed != nullptr && t < visible; ++t) {
      if (allowed[i * width + t] == 0) scores[i * width + t] = minus_infinity();
    }
  }
  return scores;
}

std::vector<int32_t> select_all(const bf16* scores, const Queries& q) {
  const int64_t width = q.scores.shape[1], k = q.idxs.shape[1];
  std::vector<int32_t> selected(static_cast<size_t>(q.count * k));
  for (int64_t i = 0; i < q.count; ++i) {
    cpu::select_topk(scores + i * width, nullptr, width, static_cast<int32_t>(k), &selected[i * k]);
  }
  return selected;
}

void check_queries(const OpsCase& c, const Indexer& ix, const Keys& keys, const Queries& q, const uint8_t* allowed) {
  const int64_t width = q.scores.shape[1], k = q.idxs.shape[1];
  require(c, width <= static_cast<int64_t>(keys.rows.size()) / keys.dim, q.part + ".scores: expected a column a key");
  const std::vector<bf16> scores = own_scores(ix, keys, q, allowed);
  c.check(q.part + ".scores", view(scores, {q.count, width}), {{Rule::kMedianRow, 1e-2}, {Rule::kRelative, 5e-2}});

  std::vector<int32_t> expected(static_cast<size_t>(q.count * k));
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t at = q.idxs.as<int32_t>()[i];
    expected[i] = static_cast<int32_t>(at < 0 ? at : at - q.offset);
  }
  c.check_against(q.part + ".idxs_from_stored_scores", view(select_all(q.scores.as<bf16>(), q), {q.count, k}),
                  view(expected, {q.count, k}), {{Rule::kExact, 0}});

  // From our own scores a row may choose otherwise only where the choice was close.
  Freedom freedom = Freedom::unknown(q.count);
  for (int64_t i = 0; i < q.count; ++i) {
    const int32_t* chosen = expected.data() + i * k;
    float last_chosen = std::numeric_limits<float>::infinity(), best_left = -last_chosen, largest = 0;
    for (int64_t t = 0; t < width; ++t) {
      const float s = to_float(q.scores.as<bf16>()[i * width + t]), own = to_float(scores[i * width + t]);
      const bool is_chosen = std::find(chosen, chosen + k, t) != chosen + k;
      if (is_chosen) last_chosen = std::min(last_chosen, s);
      if (!is_chosen) best_left = std::max(best_left, s);
      if (std::isfinite(s) && std::isfinite(own)) largest = std::max(largest, std::abs(s - own));
    }
    freedom.margin[i] = last_chosen - best_left;
    freedom.moved[i] = largest;
  }
  c.report.add(compare_selections(c.label(q.part + ".idxs"), select_all(scores.data(), q), expected, k, freedom, 0.9));
  c.file.mark_used(c.op + "." + c.name + "." + q.part + ".margin");
}

// Candidate masks from the stored scores: exact.
void check_candidates(const OpsCase& c, const Queries& q, int64_t ratio) {
  const int64_t width = q.scores.shape[1];
  const Selection s = selection_of(c);
  std::vector<uint8_t> mask(static_cast<size_t>(q.count * width));
  std::vector<int32_t> blocks(static_cast<size_t>(s.topk_blocks));
  for (int64_t i = 0; i < q.count; ++i) {
    const int64_t visible = std::min(width, (q.first + i + 1) / ratio);
    cpu::select_candidates(q.scores.as<bf16>() + i * width, visible, static_cast<int32_t>(s.block_size),
                           static_cast<int32_t>(s.topk_blocks), blocks.data());
    mask_of_blocks(blocks, s.block_size, width, &mask[i * width]);
  }
  c.check(q.part + ".candidates", view(mask), {{Rule::kExact, 0}});
}

// The layer whose keys (and candidates) this one uses, from its role: "uses layer 1's keys and candidates".
std::string source_of(const OpsCase& c) {
  const std::string role = c.text("role");
  const size_t at = role.find("layer ");
  if (at == std::string::npos) return "";
  const size_t end = role.find_first_not_of("0123456789", at + 6);
  return "layer" + role.substr(at + 6, end - at - 6);
}

}  // namespace

void check_compress_index(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize});
  const int64_t n = x.shape[0];
  const int64_t prefill = c.integer("prefill_tokens", 1, n), steps = c.integer("decode_steps", 0, n - prefill);
  require(c, n == prefill + steps, "x: expected a row for each token, found " + shape_text(x));
  Keys keys;
  keys.ratio = c.integer("ratio", 1, 2);

  std::string source;
  if (c.has("weights.compressor.wkv.weight")) {
    check_compressor(c, x, prefill, steps, keys);
  } else {
    // The owner's keys as they are stored: a difference there has been reported there.
    source = source_of(c);
    require(c, !source.empty(), "expected keys of its own, or a role that names the layer whose keys it uses");
    const TensorView stored =
        c.file.get(c.op + "." + source + ".final.index_k", DType::kBF16, {n / keys.ratio, kAnySize});
    keys.dim = stored.shape[1];
    require(c, keys.dim % 32 == 0, "final.index_k: expected keys of whole blocks of 32");
    for (int64_t i = 0; i < stored.elements(); ++i) keys.rows.push_back(to_float(stored.as<bf16>()[i]));
  }
  const bool filtered = !source.empty() && c.text("role").find("candidates") != std::string::npos &&
                        c.text("role").find("no candidates") == std::string::npos;
  const Indexer ix = make_indexer(c, x, keys);
  for (int64_t s = -1; s < steps; ++s) {
    Queries q;
    q.part = s < 0 ? "prefill" : "decode" + std::to_string(s);
    q.first = s < 0 ? 0 : prefill + s;
    q.count = s < 0 ? prefill : 1;
    q.offset = c.integer(s < 0 ? "prefill_offset" : "decode_offset", 0, INT32_MAX);
    q.scores = c.in(q.part + ".scores", DType::kBF16, {q.count, (q.first + q.count) / keys.ratio});
    q.idxs = c.in(q.part + ".idxs", DType::kI32, {q.count, kAnySize});
    const uint8_t* allowed = nullptr;
    if (filtered) {
      allowed = c.file.get(c.op + "." + source + "." + q.part + ".candidates", DType::kU8, {q.count, q.scores.shape[1]})
                    .as<uint8_t>();
    }
    check_queries(c, ix, keys, q, allowed);
    if (c.has(q.part + ".candidates")) check_candidates(c, q, keys.ratio);
  }
}

}  // namespace mdi::golden
