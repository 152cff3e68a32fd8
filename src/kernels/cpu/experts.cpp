#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace mdi::cpu {

namespace {
float softplus(float z) { return z > 20.0f ? z : std::log1p(std::exp(z)); }
}  // namespace

void gate_select(const float* z, const float* bias, int32_t experts, int32_t topk, float route_scale, float gate_temp,
                 float* biased, int32_t* index, float* weight) {
  for (int e = 0; e < experts; ++e) biased[e] = std::sqrt(softplus(z[e] / gate_temp)) + bias[e];
  float sum = 0;
  for (int n = 0; n < topk; ++n) {
    int best = -1;
    for (int e = 0; e < experts; ++e) {
      if (std::find(index, index + n, e) != index + n) continue;
      if (best < 0 || biased[e] > biased[best]) best = e;
    }
    index[n] = best;
    weight[n] = std::sqrt(softplus(z[best] / gate_temp));
    sum += weight[n];
  }
  for (int n = 0; n < topk; ++n) weight[n] = weight[n] / (sum + 1e-20f) * route_scale;
}

void swiglu(const bf16* gate, const bf16* up, int64_t n, float limit, float weight, bf16* t) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = std::min(to_float(gate[i]), limit);
    const float u = std::clamp(to_float(up[i]), -limit, limit);
    const float silu = g / (1.0f + std::exp(-g));
    t[i] = to_bf16(weight * (silu * u));
  }
}

}  // namespace mdi::cpu
