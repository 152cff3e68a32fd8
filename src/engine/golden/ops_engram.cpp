// The n-gram hash, and the lookup with its gated addition.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/engram_multipliers.h"
#include "core/error.h"
#include "engine/golden/ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"

namespace mdi::golden {
namespace {

constexpr int64_t kMaxNgram = 16;
constexpr int64_t kMaxColumns = 1024;

// Our own draw of the multipliers, where the case says which layers they are of.
void check_multipliers(const OpsCase& c, const TensorView& multipliers) {
  const int64_t layers = multipliers.shape[0], count = multipliers.shape[1];
  const int64_t vocab = c.integer("compressed_vocab_size", 1, int64_t{1} << 29);
  const std::vector<int64_t> ids = c.integers("layer_ids");
  require(c, static_cast<int64_t>(ids.size()) == layers, "layer_ids: expected one for each row of multipliers");
  std::vector<int64_t> drawn;
  for (int64_t id : ids) {
    require(c, id >= 0 && id < 100000, "layer_ids: expected layers from 0 to 99999, found " + std::to_string(id));
    const auto row = engram_layer_multipliers(static_cast<int>(id), vocab, static_cast<int>(count));
    drawn.insert(drawn.end(), row.begin(), row.end());
  }
  c.check("multipliers", view(drawn), {{Rule::kExact, 0}});
}

}  // namespace

void check_engram_hash(const OpsCase& c) {
  const int64_t ngram = c.integer("ngram", 2, kMaxNgram), heads = c.integer("heads", 1, 64);
  const int64_t columns = (ngram - 1) * heads;
  const int64_t vocab = c.integer("compressed_vocab_size", 1, int64_t{1} << 29);
  const auto pad = static_cast<int32_t>(c.integer("compressed_pad_id", 0, vocab - 1));
  const TensorView ids = c.in("compressed_ids", DType::kI64, {kAnySize, kAnySize});
  const int64_t batch = ids.shape[0], length = ids.shape[1];
  const TensorView live = c.in("live_mask", DType::kU8, {batch, length});
  const TensorView multipliers = c.in("multipliers", DType::kI64, {kAnySize, ngram});
  const int64_t layers = multipliers.shape[0];
  const TensorView primes = c.in("primes", DType::kI64, {layers, ngram - 1, heads});
  const TensorView offsets = c.in("offsets", DType::kI64, {layers, columns});
  c.in("hash_ids", DType::kI64, {batch, length, layers, columns});
  check_multipliers(c, multipliers);
  for (int64_t i = 0; i < primes.elements(); ++i)
    require(c, primes.as<int64_t>()[i] > 0, "primes: expected positive numbers");
  // The products must stay within 63 bits, as the reference's do.
  for (int64_t i = 0; i < multipliers.elements(); ++i) {
    const int64_t m = multipliers.as<int64_t>()[i];
    require(c, m >= 0 && m <= INT64_MAX / vocab, "multipliers: expected no overflow with the compressed vocabulary");
  }

  std::vector<int64_t> rows(static_cast<size_t>(batch * length * layers * columns));
  std::vector<int32_t> context(static_cast<size_t>(ngram));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t p = 0; p < length; ++p) {
      for (int64_t j = 0; j < ngram; ++j) {
        const int64_t at = b * length + p - j;
        const bool there = p >= j && live.as<uint8_t>()[at] != 0;
        const int64_t id = there ? ids.as<int64_t>()[at] : -1;
        require(c, id >= -1 && id < vocab, "compressed_ids: expected ids below " + std::to_string(vocab));
        context[j] = static_cast<int32_t>(id);
      }
      for (int64_t l = 0; l < layers; ++l) {
        cpu::engram_hash_row(context.data(), static_cast<int32_t>(ngram), static_cast<int32_t>(heads), pad,
                             multipliers.as<int64_t>() + l * ngram, primes.as<int64_t>() + l * columns,
                             offsets.as<int64_t>() + l * columns, &rows[((b * length + p) * layers + l) * columns]);
      }
    }
  }
  c.check("hash_ids", view(rows), {{Rule::kExact, 0}});
}

void check_engram(const OpsCase& c) {
  const TensorView x = c.in("x", DType::kBF16, {kAnySize, kAnySize, kAnySize});
  const int64_t n = x.shape[0], hc = x.shape[1], dim = x.shape[2];
  const TensorView ids = c.in("hash_ids", DType::kI64, {n, kAnySize});
  const int64_t columns = ids.shape[1];
  require(c, columns <= kMaxColumns, "hash_ids: expected at most 1024 columns, found " + shape_text(ids));
  const TensorView table = c.in("embed.weight", DType::kE4M3, {kAnySize, kAnySize});
  const int64_t table_rows = table.shape[0], head_dim = table.shape[1];
  require(c, head_dim % 32 == 0, "embed.weight: expected whole blocks of 32 columns, found " + shape_text(table));
  const TensorView table_scale = c.in("embed.scale", DType::kE8M0, {table_rows, head_dim / 32});
  const int64_t k = columns * head_dim, out_dim = (hc + 1) * dim;
  const TensorView wkv = c.in("wkv.weight", DType::kE4M3, {out_dim, k});
  const TensorView wkv_scale = c.in("wkv.scale", DType::kE8M0, {(out_dim + 31) / 32, k / 32});
  const TensorView q_weight = c.in("q_weight", DType::kBF16, {hc, dim});
  const TensorView k_weight = c.in("k_weight", DType::kBF16, {hc, dim});
  const auto eps = static_cast<float>(c.number("eps"));
  for (int64_t i = 0; i < ids.elements(); ++i) {
    const int64_t id = ids.as<int64_t>()[i];
    require(c, id >= 0 && id < table_rows, "hash_ids: expected rows of the table, found " + std::to_string(id));
  }

  std::vector<bf16> rows(static_cast<size_t>(n * k)), quantised(rows.size()), kv(static_cast<size_t>(n * out_dim));
  for (int64_t i = 0; i < n; ++i) {
    cpu::engram_lookup(ids.as<int64_t>() + i * columns, static_cast<int32_t>(columns), static_cast<int32_t>(head_dim),
                       table.as<e4m3>(), table_scale.as<e8m0>(), &rows[i * k]);
    cpu::act_quant_dequant(&rows[i * k], k, &quantised[i * k]);
  }
  c.check("rows", view(rows), {{Rule::kExact, 0}});
  cpu::GemmArgs args;
  args.x = quantised.data();
  args.m = n;
  args.ldx = k;
  args.w = {WeightKind::kE4M3, wkv.data, wkv_scale.as<e8m0>(), out_dim, k};
  args.y_bf16 = kv.data();
  args.ldy = out_dim;
  cpu::gemm(c.pool, args);

  const auto add = [&](const uint8_t* live) {
    std::vector<bf16> h(x.as<bf16>(), x.as<bf16>() + x.elements());
    for (int64_t i = 0; i < n; ++i) {
      if (live != nullptr && live[i] == 0) continue;
      cpu::engram_gate_add(&kv[i * out_dim], q_weight.as<bf16>(), k_weight.as<bf16>(), static_cast<int32_t>(hc),
                           static_cast<int32_t>(dim), eps, &h[i * hc * dim]);
    }
    return h;
  };
  c.check("out", view(add(nullptr)), {{Rule::kRelative, 1e-2}});
  if (c.has("out_masked")) {
    c.check("out_masked", view(add(c.in("live_mask", DType::kU8, {n}).as<uint8_t>())), {{Rule::kRelative, 1e-2}});
  }
}

}  // namespace mdi::golden
