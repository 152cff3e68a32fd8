#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"
#include "kernels/cpu/simd.h"

namespace mdi::cpu {

void engram_hash_row(const int32_t* context, int32_t ngram, int32_t heads, int32_t pad, const int64_t* multipliers,
                     const int64_t* primes, const int64_t* offsets, int64_t* rows) {
  int64_t x = 0;
  bool blocked = false;
  for (int j = 0; j < ngram; ++j) {
    blocked = blocked || context[j] < 0;
    const int64_t token = blocked ? pad : context[j];
    x ^= token * multipliers[j];
    if (j == 0) continue;
    for (int head = 0; head < heads; ++head) {
      const int column = (j - 1) * heads + head;
      rows[column] = x % primes[column] + offsets[column];
    }
  }
}

void engram_lookup(const int64_t* rows, int32_t columns, int32_t head_dim, const e4m3* table, const e8m0* scale,
                   bf16* e) {
  for (int c = 0; c < columns; ++c) {
    const e4m3* codes = table + rows[c] * head_dim;
    const e8m0* scales = scale + rows[c] * (head_dim / 32);
    bf16* out = e + int64_t{c} * head_dim;
    for (int i = 0; i < head_dim; ++i) out[i] = to_bf16(to_float(codes[i]) * to_float(scales[i / 32]));
  }
}

void engram_gate_add(const bf16* kv, const bf16* q_weight, const bf16* k_weight, int32_t hc, int32_t dim, float eps,
                     bf16* h) {
  const bf16* value = kv + int64_t{hc} * dim;
  const auto n = static_cast<float>(dim);
  for (int j = 0; j < hc; ++j) {
    const bf16* key = kv + int64_t{j} * dim;
    const bf16* qw = q_weight + int64_t{j} * dim;
    const bf16* kw = k_weight + int64_t{j} * dim;
    bf16* stream = h + int64_t{j} * dim;
    const float dot = lane_sum(
        dim, [&](int64_t i) { return to_float(stream[i]) * (to_float(qw[i]) * to_float(kw[i])) * to_float(key[i]); });
    const auto square = [](const bf16* v) { return [v](int64_t i) { return to_float(v[i]) * to_float(v[i]); }; };
    const float stream_rms = 1.0f / std::sqrt(lane_sum(dim, square(stream)) / n + eps);
    const float key_rms = 1.0f / std::sqrt(lane_sum(dim, square(key)) / n + eps);
    const float d = dot * (stream_rms * key_rms) * (1.0f / std::sqrt(n));
    const float gate = 1.0f / (1.0f + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d)));
    for (int i = 0; i < dim; ++i) stream[i] = to_bf16(to_float(stream[i]) + gate * to_float(value[i]));
  }
}

}  // namespace mdi::cpu
