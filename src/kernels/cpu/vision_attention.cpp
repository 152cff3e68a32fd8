#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/vision.h"

namespace mdi::cpu {

namespace {

constexpr int kQueries = 4;                                              // whose sums stay in registers
constexpr int kWide = static_cast<int>(AttentionTiles::kKeys) / kLanes;  // vectors a tile of keys

using BitLanes = uint32_t __attribute__((vector_size(64)));

// e^x for x <= 0, within 2 units of the last place; 0 below e^-87. The text network's attention takes 640 keys a query
// and std::exp; here there are up to 9,216 and the exponentials would cost more than the products.
Lanes exp_of(Lanes x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const Lanes shifted = fma(x, splat(0x1.715476p0f), splat(kRound));
  const Lanes whole = shifted - splat(kRound);
  // ln 2 in two parts: the first has few bits, so that its product is exact.
  const Lanes r = fma(whole, splat(-0x1.7f7d1cp-20f), fma(whole, splat(-0x1.62e400p-1f), x));
  Lanes sum = splat(1.0f / 5040);
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = fma(sum, r, splat(coefficient));
  }
  const BitLanes power = std::bit_cast<BitLanes>(shifted) << 23;
  const auto keep = std::bit_cast<BitLanes>(x > splat(-87.0f));  // all bits set where true
  return std::bit_cast<Lanes>((std::bit_cast<BitLanes>(sum) + power) & keep);
}

// c[i] += sum_k a[i][k] * b[k] for kQueries rows of a and kWidth vectors of b, k ascending.
template <int kWidth>
void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, float* c,
              int64_t c_stride) {
  Lanes sum[kQueries][kWidth];
  for (int i = 0; i < kQueries; ++i) {
    for (int w = 0; w < kWidth; ++w) sum[i][w] = load(c + i * c_stride + w * kLanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Lanes right[kWidth];
    for (int w = 0; w < kWidth; ++w) right[w] = load(b + k * b_stride + w * kLanes);
    for (int i = 0; i < kQueries; ++i) {
      const Lanes left = splat(a[i * a_stride + k]);
      for (int w = 0; w < kWidth; ++w) sum[i][w] = fma(left, right[w], sum[i][w]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int w = 0; w < kWidth; ++w) store(c + i * c_stride + w * kLanes, sum[i][w]);
  }
}

// The softmax of one query so far.
struct Running {
  float largest = -INFINITY, denominator = 0;
};

// Scores of a tile to weights, in place; returns what earlier sums are multiplied with.
float soften(float* scores, int64_t live, float scale, Running& state) {
  constexpr int64_t kKeys = AttentionTiles::kKeys;
  for (int64_t t = 0; t < live; ++t) scores[t] *= scale;
  std::fill(scores + live, scores + kKeys, -INFINITY);
  float largest = state.largest;
  for (int64_t t = 0; t < live; ++t) largest = std::max(largest, scores[t]);
  const float decay = std::exp(state.largest - largest);
  Lanes sum{};
  for (int64_t t = 0; t < kKeys; t += kLanes) {
    const Lanes weight = exp_of(load(scores + t) - splat(largest));
    sum += weight;
    store(scores + t, weight);
  }
  state.denominator = state.denominator * decay + horizontal_sum(sum);
  state.largest = largest;
  return decay;
}

}  // namespace

void vision_rope(const float* cos_sin, int32_t head_dim, bf16* x) {
  const int32_t half = head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const float c = cos_sin[2 * i];
    const float s = cos_sin[2 * i + 1];
    const float a = to_float(x[i]);
    const float b = to_float(x[half + i]);
    x[i] = to_bf16(a * c - b * s);
    x[half + i] = to_bf16(b * c + a * s);
  }
}

AttentionTiles::AttentionTiles(int64_t count, int32_t dim)
    : n(count),
      width((dim + kLanes - 1) / kLanes * kLanes),
      head_dim(dim),
      keys(static_cast<size_t>((count + kKeys - 1) / kKeys * kKeys * dim)),
      values(static_cast<size_t>(count * width)) {}

void AttentionTiles::set(int64_t i, const bf16* key, const bf16* value) {
  float* tile = keys.data() + i / kKeys * kKeys * head_dim + i % kKeys;
  for (int64_t d = 0; d < head_dim; ++d) tile[d * kKeys] = to_float(key[d]);
  for (int64_t d = 0; d < head_dim; ++d) values[static_cast<size_t>(i * width + d)] = to_float(value[d]);
}

void attend_all(const AttentionTiles& tiles, const bf16* q, int64_t q_stride, int64_t count, float scale, bf16* o,
                int64_t o_stride) {
  constexpr int64_t kKeys = AttentionTiles::kKeys;
  const int64_t dim = tiles.head_dim;
  const int64_t width = tiles.width;
  const int64_t groups = (count + kQueries - 1) / kQueries;
  thread_local std::vector<float> queries, outputs;
  queries.assign(static_cast<size_t>(groups * kQueries * dim), 0.0f);
  outputs.assign(static_cast<size_t>(groups * kQueries * width), 0.0f);
  std::vector<Running> running(static_cast<size_t>(groups * kQueries));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < dim; ++d) queries[static_cast<size_t>(i * dim + d)] = to_float(q[i * q_stride + d]);
  }
  for (int64_t begin = 0; begin < tiles.n; begin += kKeys) {
    const int64_t live = std::min(kKeys, tiles.n - begin);
    const float* keys = tiles.keys.data() + begin * dim;
    const float* values = tiles.values.data() + begin * width;
    for (int64_t first = 0; first < groups * kQueries; first += kQueries) {
      float scores[kQueries * kKeys] = {};
      multiply<kWide>(queries.data() + first * dim, dim, keys, kKeys, dim, scores, kKeys);
      float* out = outputs.data() + first * width;
      for (int64_t i = 0; i < kQueries; ++i) {
        const float decay = soften(scores + i * kKeys, live, scale, running[static_cast<size_t>(first + i)]);
        for (int64_t d = 0; d < width; ++d) out[i * width + d] *= decay;
      }
      int64_t d = 0;
      for (; d + kWide * kLanes <= width; d += kWide * kLanes) {
        multiply<kWide>(scores, kKeys, values + d, width, live, out + d, width);
      }
      for (; d < width; d += kLanes) multiply<1>(scores, kKeys, values + d, width, live, out + d, width);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const float denominator = running[static_cast<size_t>(i)].denominator;
    for (int64_t d = 0; d < dim; ++d) {
      o[i * o_stride + d] = to_bf16(outputs[static_cast<size_t>(i * width + d)] / denominator);
    }
  }
}

}  // namespace mdi::cpu
