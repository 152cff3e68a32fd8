#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/reference.h"

namespace mdi::cpu {

namespace {
// The (fractional) pair whose wavelength makes `rotations` turns over the original context.
double correction_pair(const RopeParameters& p, double rotations) {
  return p.rope_dim * std::log(static_cast<double>(p.original_seq_len) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(p.theta));
}
}  // namespace

void rope_frequencies(const RopeParameters& p, float* inv_freq) {
  const int pairs = p.rope_dim / 2;
  for (int i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(p.rope_dim);
    inv_freq[i] = 1.0f / static_cast<float>(std::pow(p.theta, static_cast<double>(exponent)));
  }
  if (p.original_seq_len == 0) return;

  const double low = std::max(std::floor(correction_pair(p, p.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction_pair(p, p.beta_slow)), p.rope_dim - 1.0);
  if (low == high) high += 0.001;
  const auto factor = static_cast<float>(p.factor);
  for (int i = 0; i < pairs; ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float g = 1.0f - ramp;
    inv_freq[i] = inv_freq[i] / factor * (1.0f - g) + inv_freq[i] * g;
  }
}

void rope_angles(const RopeTable& table, int32_t position, float* cos_sin) {
  for (int i = 0; i < table.rope_dim / 2; ++i) {
    const float angle = static_cast<float>(position) * table.inv_freq[i];
    cos_sin[2 * i] = static_cast<float>(std::cos(static_cast<double>(angle)));
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

void rope_apply(const float* cos_sin, int32_t rope_dim, bf16* x, int64_t n, bool inverse) {
  bf16* part = x + (n - rope_dim);
  // Products first: from re * c - im * s beside re * s + im * c, GCC 12 makes fused multiply-adds even though
  // contraction is off.
  for (int i = 0; i < rope_dim / 2; ++i) {
    const float c = cos_sin[2 * i];
    const float s = inverse ? -cos_sin[2 * i + 1] : cos_sin[2 * i + 1];
    const float re = to_float(part[2 * i]);
    const float im = to_float(part[2 * i + 1]);
    const float products[4] = {re * c, im * -s, re * s, im * c};
    part[2 * i] = to_bf16(products[0] + products[1]);
    part[2 * i + 1] = to_bf16(products[2] + products[3]);
  }
}

}  // namespace mdi::cpu
