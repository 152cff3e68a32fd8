#include "kernels/cpu/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/round_lanes.h"

namespace mdi::cpu {

namespace {

constexpr int64_t kBlock = 32;  // act_quant, indexer fp4
constexpr int64_t kGroup = 16;  // compressed KV fp4

// Largest magnitude. Magnitudes of bf16 order like their bits, with NaN above infinity, so a NaN is not lost.
float abs_max(const bf16* x, int64_t n) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint16_t>(x[i].bits & 0x7FFFu));
  return to_float(bf16{largest});
}

// 3.3; a block with a NaN or an infinity gets the NaN scale, so that it cannot pass for numbers.
e8m0 scale_of(const bf16* x, int64_t n, float floor, float inv) {
  const float largest = abs_max(x, n);
  if (!(largest <= 0x1.FEp127f)) return {255};
  return block_scale(std::max(largest, floor), inv);
}

// x * (1 / s) is x / s: s is a power of two whose inverse is a normal number for every amax that reaches here.
float inverse(e8m0 s) { return 1.0f / to_float(s); }

constexpr float kActFloor = 1e-4f;
constexpr float kFp4FloorE8M0 = 6.0f * 0x1p-126f;
constexpr float kFp4FloorE4M3 = 6.0f * 0x1p-9f;

void quantise_block(const bf16* x, int64_t n, e4m3* q, e8m0 s) {
  if (s.bits == 255) {
    for (int64_t i = 0; i < n; ++i) q[i] = {0x7F};
    return;
  }
  const float inv = inverse(s);
  for (int64_t i = 0; i < n; ++i) q[i].bits = e4m3_code_of(round_to_e4m3(to_float(x[i]) * inv));
}

void quantise_dequantise_block(const bf16* x, int64_t n, bf16* y, e8m0 s) {
  if (s.bits == 255) {
    for (int64_t i = 0; i < n; ++i) y[i] = {0x7FC0};
    return;
  }
  const float inv = inverse(s);
  const float scale = to_float(s);
  for (int64_t i = 0; i < n; ++i) {
    const float v = round_to_e4m3(to_float(x[i]) * inv) * scale;
    y[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);  // exact: 4 significant bits
  }
}

// codes of x / s, two a byte; n is even.
void pack_fp4(const bf16* x, int64_t n, float s, uint8_t* packed) {
  uint8_t code[kBlock] = {};
  for (int64_t i = 0; i < n; ++i) code[i] = static_cast<uint8_t>(e2m1_code(to_float(x[i]) / s));
  for (int64_t i = 0; i < n / 2; ++i) packed[i] = static_cast<uint8_t>(code[2 * i] | (code[2 * i + 1] << 4));
}

void unpack_fp4(const uint8_t* packed, int64_t n, float s, float* x) {
  for (int64_t i = 0; i < n / 2; ++i) {
    x[2 * i] = e2m1_low(packed[i]) * s;
    x[2 * i + 1] = e2m1_high(packed[i]) * s;
  }
}

}  // namespace

void act_quant(const bf16* x, int64_t k, e4m3* q, e8m0* scale) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    const int64_t n = std::min(kBlock, k - b * kBlock);
    scale[b] = scale_of(x + b * kBlock, n, kActFloor, kInv448);
    quantise_block(x + b * kBlock, n, q + b * kBlock, scale[b]);
  }
}

void act_dequant(const e4m3* q, const e8m0* scale, int64_t k, float* x) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    const int64_t end = std::min(k, (b + 1) * kBlock);
    const float s = to_float(scale[b]);
    for (int64_t i = b * kBlock; i < end; ++i) x[i] = e4m3_value(q[i].bits) * s;
  }
}

void act_dequant(const e4m3* q, const e8m0* scale, int64_t k, bf16* x) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    const int64_t end = std::min(k, (b + 1) * kBlock);
    const float s = to_float(scale[b]);
    for (int64_t i = b * kBlock; i < end; ++i) x[i] = to_bf16(e4m3_value(q[i].bits) * s);
  }
}

void act_quant_dequant(const bf16* x, int64_t k, bf16* y) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    const int64_t n = std::min(kBlock, k - b * kBlock);
    quantise_dequantise_block(x + b * kBlock, n, y + b * kBlock, scale_of(x + b * kBlock, n, kActFloor, kInv448));
  }
}

void fp4_quant_e8m0(const bf16* x, int64_t k, uint8_t* packed, e8m0* scale) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    const int64_t n = std::min(kBlock, k - b * kBlock);
    scale[b] = scale_of(x + b * kBlock, n, kFp4FloorE8M0, kInv6);
    pack_fp4(x + b * kBlock, n, to_float(scale[b]), packed + b * kBlock / 2);
  }
}

void fp4_dequant_e8m0(const uint8_t* packed, const e8m0* scale, int64_t k, float* x) {
  for (int64_t b = 0; b * kBlock < k; ++b) {
    unpack_fp4(packed + b * kBlock / 2, std::min(kBlock, k - b * kBlock), to_float(scale[b]), x + b * kBlock);
  }
}

void fp4_quant_e4m3(const bf16* x, int64_t k, uint8_t* packed, e4m3* scale) {
  for (int64_t g = 0; g * kGroup < k; ++g) {
    const int64_t n = std::min(kGroup, k - g * kGroup);
    // Not std::max: a NaN maximum has to reach the scale.
    const float largest = abs_max(x + g * kGroup, n);
    scale[g] = to_e4m3((largest < kFp4FloorE4M3 ? kFp4FloorE4M3 : largest) / 6.0f);
    pack_fp4(x + g * kGroup, n, to_float(scale[g]), packed + g * kGroup / 2);
  }
}

void fp4_dequant_e4m3(const uint8_t* packed, const e4m3* scale, int64_t k, float* x) {
  for (int64_t g = 0; g * kGroup < k; ++g) {
    unpack_fp4(packed + g * kGroup / 2, std::min(kGroup, k - g * kGroup), to_float(scale[g]), x + g * kGroup);
  }
}

void rms_norm(const bf16* x, const bf16* w, int64_t n, float eps, bf16* y) {
  // Lane i sums the squares of elements i, i + 64, ...: an order that does not depend on the vector width.
  constexpr int64_t kLanes = 64;
  float lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float v = to_float(x[i + j]);
      lane[j] += v * v;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const float v = to_float(x[i + j]);
    lane[j] += v * v;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  const float r = 1.0f / std::sqrt(lane[0] / static_cast<float>(n) + eps);
  for (int64_t j = 0; j < n; ++j) y[j] = to_bf16(to_float(w[j]) * (to_float(x[j]) * r));
}

}  // namespace mdi::cpu
