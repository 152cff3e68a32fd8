#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"
#include "kernels/cpu/simd.h"

namespace mdi::cpu {

namespace {

constexpr int kBlock = 64;  // keys per step of the online softmax (6.7)
constexpr int kTile = 4;    // heads x keys, and heads x lane groups, whose sums stay in registers

using RowPointers = std::array<const float*, kBlock>;

// s[h][t] = q[h] . row[t] for kTile heads and kTile keys.
void dot_tile(const float* q, const float* const* rows, int64_t dim, float* s, int64_t s_stride) {
  Lanes sum[kTile][kTile] = {};
  for (int64_t d = 0; d < dim; d += kLanes) {
    Lanes key[kTile];
    for (int t = 0; t < kTile; ++t) key[t] = load(rows[t] + d);
    for (int h = 0; h < kTile; ++h) {
      const Lanes query = load(q + h * dim + d);
      for (int t = 0; t < kTile; ++t) sum[h][t] = fma(query, key[t], sum[h][t]);
    }
  }
  for (int h = 0; h < kTile; ++h) {
    for (int t = 0; t < kTile; ++t) s[h * s_stride + t] = horizontal_sum(sum[h][t]);
  }
}

// o[h][d .. d + width) = o * decay[h] + sum_t p[h][t] * row[t][d ..] for kTile heads, t ascending.
template <int kWidth>
void value_tile(const float* p, const float* const* rows, int n, int64_t d, const float* decay, float* o, int64_t dim) {
  Lanes sum[kTile][kWidth];
  for (int h = 0; h < kTile; ++h) {
    for (int w = 0; w < kWidth; ++w) sum[h][w] = load(o + h * dim + d + w * kLanes) * splat(decay[h]);
  }
  for (int t = 0; t < n; ++t) {
    for (int w = 0; w < kWidth; ++w) {
      const Lanes value = load(rows[t] + d + w * kLanes);
      for (int h = 0; h < kTile; ++h) sum[h][w] = fma(splat(p[h * kBlock + t]), value, sum[h][w]);
    }
  }
  for (int h = 0; h < kTile; ++h) {
    for (int w = 0; w < kWidth; ++w) store(o + h * dim + d + w * kLanes, sum[h][w]);
  }
}

// Four heads (padded with zero queries) over all blocks. q and o are [kTile, dim] scratch.
void attend_heads(const float* q, const float* kv, const uint8_t* valid, int64_t n, const float* sink, float scale,
                  int64_t dim, const float* zero_row, float* o) {
  float largest[kTile], denominator[kTile], decay[kTile];
  std::fill_n(largest, kTile, -1e30f);
  std::fill_n(denominator, kTile, 0.0f);
  float p[kTile * kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    RowPointers rows{};
    int live = 0;
    for (int64_t t = begin; t < std::min(begin + kBlock, n); ++t) {
      if (valid[t] != 0) rows[static_cast<size_t>(live++)] = kv + t * dim;
    }
    if (live == 0) continue;
    for (int t = live; t % kTile != 0; ++t) rows[static_cast<size_t>(t)] = zero_row;
    for (int t = 0; t < live; t += kTile) dot_tile(q, rows.data() + t, dim, p + t, kBlock);

    for (int h = 0; h < kTile; ++h) {
      float* row = p + h * kBlock;
      float block_largest = largest[h];
      for (int t = 0; t < live; ++t) {
        row[t] *= scale;
        block_largest = std::max(block_largest, row[t]);
      }
      decay[h] = std::exp(largest[h] - block_largest);
      float sum = 0;
      for (int t = 0; t < live; ++t) {
        const float e = std::exp(row[t] - block_largest);
        sum += e;
        row[t] = round_bf16(e);
      }
      denominator[h] = denominator[h] * decay[h] + sum;
      largest[h] = block_largest;
    }
    int64_t d = 0;
    for (; d + kTile * kLanes <= dim; d += kTile * kLanes) value_tile<kTile>(p, rows.data(), live, d, decay, o, dim);
    for (; d < dim; d += kLanes) value_tile<1>(p, rows.data(), live, d, decay, o, dim);
  }
  for (int h = 0; h < kTile; ++h) {
    const float total = denominator[h] + std::exp(sink[h] - largest[h]);
    for (int64_t d = 0; d < dim; ++d) o[h * dim + d] /= total;
  }
}

}  // namespace

void attend(const bf16* q, const float* kv, const uint8_t* valid, int64_t n, const float* sink, float scale,
            int32_t heads, int32_t head_dim, bf16* o) {
  const auto dim = static_cast<size_t>(head_dim);
  thread_local std::vector<float> zero_row, queries, outputs;
  zero_row.assign(dim, 0.0f);
  for (int first = 0; first < heads; first += kTile) {
    const int used = std::min(kTile, heads - first);
    float sinks[kTile] = {};
    queries.assign(kTile * dim, 0.0f);
    outputs.assign(kTile * dim, 0.0f);
    for (int h = 0; h < used; ++h) {
      sinks[h] = sink[first + h];
      const bf16* from = q + int64_t{first + h} * head_dim;
      std::transform(from, from + head_dim, queries.begin() + int64_t{h} * head_dim,
                     [](bf16 v) { return to_float(v); });
    }
    attend_heads(queries.data(), kv, valid, n, sinks, scale, head_dim, zero_row.data(), outputs.data());
    for (int h = 0; h < used; ++h) {
      const auto from = outputs.begin() + int64_t{h} * head_dim;
      std::transform(from, from + head_dim, o + int64_t{first + h} * head_dim, [](float v) { return to_bf16(v); });
    }
  }
}

}  // namespace mdi::cpu
