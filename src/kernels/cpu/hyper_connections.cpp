#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"
#include "kernels/cpu/simd.h"

namespace mdi::cpu {

namespace {
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
}  // namespace

void hc_split(const float* mixes, const float* scale, const float* base, int32_t hc, int32_t iters, float eps,
              float* pre, float* post, float* comb) {
  for (int j = 0; j < hc; ++j) {
    pre[j] = sigmoid(mixes[j] * scale[0] + base[j]) + eps;
    post[j] = 2.0f * sigmoid(mixes[hc + j] * scale[1] + base[hc + j]);
  }
  for (int i = 0; i < hc; ++i) {
    float* row = comb + i * hc;
    float largest = -INFINITY;
    for (int k = 0; k < hc; ++k) {
      const int at = 2 * hc + i * hc + k;
      row[k] = mixes[at] * scale[2] + base[at];
      largest = std::max(largest, row[k]);
    }
    float sum = 0;
    for (int k = 0; k < hc; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int k = 0; k < hc; ++k) row[k] = row[k] / sum + eps;
  }
  const auto normalise_columns = [&] {
    for (int k = 0; k < hc; ++k) {
      float sum = 0;
      for (int i = 0; i < hc; ++i) sum += comb[i * hc + k];
      for (int i = 0; i < hc; ++i) comb[i * hc + k] /= sum + eps;
    }
  };
  const auto normalise_rows = [&] {
    for (int i = 0; i < hc; ++i) {
      float sum = 0;
      for (int k = 0; k < hc; ++k) sum += comb[i * hc + k];
      for (int k = 0; k < hc; ++k) comb[i * hc + k] /= sum + eps;
    }
  };
  normalise_columns();
  for (int n = 1; n < iters; ++n) {
    normalise_rows();
    normalise_columns();
  }
}

float hc_rms(const bf16* h, int64_t n, float eps) {
  const float sum = lane_sum(n, [h](int64_t i) {
    const float v = to_float(h[i]);
    return v * v;
  });
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

void hc_pre(const bf16* h, const float* pre, int32_t hc, int32_t dim, bf16* x) {
  for (int d = 0; d < dim; ++d) {
    float sum = 0;
    for (int c = 0; c < hc; ++c) sum += pre[c] * to_float(h[int64_t{c} * dim + d]);
    x[d] = to_bf16(sum);
  }
}

void hc_post(const bf16* y, const bf16* h, const float* post, const float* comb, int32_t hc, int32_t dim, bf16* out) {
  constexpr int kMaxCopies = 8;
  float column[kMaxCopies];
  for (int d = 0; d < dim; ++d) {
    const float value = to_float(y[d]);
    for (int k = 0; k < hc; ++k) {
      float sum = 0;
      for (int i = 0; i < hc; ++i) sum += comb[i * hc + k] * to_float(h[int64_t{i} * dim + d]);
      column[k] = post[k] * value + sum;
    }
    for (int k = 0; k < hc; ++k) out[int64_t{k} * dim + d] = to_bf16(column[k]);
  }
}

}  // namespace mdi::cpu
