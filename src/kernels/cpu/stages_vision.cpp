// The stages of the vision tower.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cpu/vision.h"

namespace mdi::cpu {

namespace {

// Rows a product is computed for at a time, so that its fp32 results stay small.
constexpr int64_t kRows = 1024;

// Queries a task of the attention: enough that a tile of keys is used often while it is in the cache.
constexpr int64_t kQueries = 64;

float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0x1.6a09e6p-1f)); }  // 2^-0.5

// cos and sin of every row's and every column's angles: [count, pairs, 2].
std::vector<float> angles(const RopeTable& rope, int64_t count) {
  std::vector<float> table(static_cast<size_t>(count * rope.rope_dim));
  for (int64_t i = 0; i < count; ++i) {
    rope_angles(rope, static_cast<int32_t>(i), table.data() + i * rope.rope_dim);
  }
  return table;
}

}  // namespace

void vision_linear(Context& context, const VisionLinearArgs& args) {
  const int64_t n = args.w.n;
  thread_local std::vector<float> product;
  product.resize(static_cast<size_t>(std::min(args.rows, kRows) * n));
  float* const sums = product.data();
  for (int64_t first = 0; first < args.rows; first += kRows) {
    const int64_t rows = std::min(kRows, args.rows - first);
    linear(context, args.x + first * args.w.k, rows, args.w, sums);
    cpu(context).pool.for_each(rows, [&, first, sums](int64_t i) {
      const float* sum = sums + i * n;
      const bf16* residual = args.residual != nullptr ? args.residual + (first + i) * n : nullptr;
      bf16* y = args.y + (first + i) * n;
      for (int64_t j = 0; j < n; ++j) {
        float value = round_bf16(args.bias != nullptr ? sum[j] + to_float(args.bias[j]) : sum[j]);
        if (args.gelu) value = gelu(value);
        if (residual != nullptr) value += to_float(residual[j]);
        y[j] = to_bf16(value);
      }
    });
  }
}

void vision_norm(Context& context, const VisionNormArgs& args) {
  cpu(context).pool.for_each(args.rows, [&](int64_t i) {
    rms_norm(args.x + i * args.dim, args.weight, args.dim, args.eps, args.y + i * args.dim);
  });
}

void vision_attention(Context& context, const VisionAttentionArgs& args) {
  if (args.rows == 0) return;
  const int64_t dim = args.head_dim;
  const int64_t row_stride = 3 * int64_t{args.heads} * dim;
  const int64_t turned = args.rope.rope_dim;  // of cos and sin: half for the row, half for the column
  const std::vector<float> table = angles(args.rope, std::max<int64_t>(args.columns, args.rows / args.columns));
  const auto scale = static_cast<float>(std::pow(static_cast<double>(dim), -0.5));
  AttentionTiles tiles(args.rows, args.head_dim);
  std::vector<bf16> queries(static_cast<size_t>(args.rows * dim));
  for (int64_t head = 0; head < args.heads; ++head) {
    cpu(context).pool.for_each(args.rows, [&](int64_t i) {
      thread_local std::vector<float> cos_sin;
      thread_local std::vector<bf16> key;
      cos_sin.resize(static_cast<size_t>(2 * turned));
      std::copy_n(table.begin() + i / args.columns * turned, turned, cos_sin.begin());
      std::copy_n(table.begin() + i % args.columns * turned, turned, cos_sin.begin() + turned);
      const bf16* q = args.qkv + i * row_stride + head * dim;
      const bf16* k = q + args.heads * dim;
      bf16* query = queries.data() + i * dim;
      std::copy_n(q, dim, query);
      vision_rope(cos_sin.data(), args.head_dim, query);
      key.assign(k, k + dim);
      vision_rope(cos_sin.data(), args.head_dim, key.data());
      tiles.set(i, key.data(), k + args.heads * dim);
    });
    cpu(context).pool.for_each((args.rows + kQueries - 1) / kQueries, [&](int64_t block) {
      const int64_t first = block * kQueries;
      const int64_t count = std::min(kQueries, args.rows - first);
      attend_all(tiles, queries.data() + first * dim, dim, count, scale, args.o + (first * args.heads + head) * dim,
                 args.heads * dim);
    });
  }
}

void vision_gate(Context& context, const VisionGateArgs& args) {
  cpu(context).pool.for_each(args.rows, [&](int64_t i) {
    const bf16* gate = args.gate_up + i * 2 * args.inter;
    const bf16* up = gate + args.inter;
    bf16* y = args.y + i * args.inter;
    for (int64_t j = 0; j < args.inter; ++j) {
      const float g = to_float(gate[j]);
      y[j] = to_bf16(round_bf16(g / (1.0f + std::exp(-g))) * to_float(up[j]));
    }
  });
}

void vision_windows(Context& context, const VisionWindowsArgs& args) {
  const int64_t side = args.side;
  const int64_t window_cols = (args.patch_cols + side - 1) / side;
  const int64_t window_rows = (args.patch_rows + side - 1) / side;
  cpu(context).pool.for_each(window_rows * window_cols, [&](int64_t window) {
    bf16* y = args.y + window * args.dim * side * side;
    for (int64_t dy = 0; dy < side; ++dy) {
      for (int64_t dx = 0; dx < side; ++dx, ++y) {
        const int64_t row = window / window_cols * side + dy;
        const int64_t col = window % window_cols * side + dx;
        const bool inside = row < args.patch_rows && col < args.patch_cols;
        const bf16* x = inside ? args.x + (row * args.patch_cols + col) * args.dim : nullptr;
        for (int64_t c = 0; c < args.dim; ++c) y[c * side * side] = inside ? x[c] : bf16{};
      }
    }
  });
}

}  // namespace mdi::cpu
