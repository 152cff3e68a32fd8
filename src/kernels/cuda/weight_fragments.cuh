// Weights in checkpoint storage, expanded to the A registers of a bf16 warpgroup product (layout in wgmma.h), one
// 64-column step at a time from a stage that the tensor copy engine wrote.
//
// Both formats become bf16 by moving their bits into a bf16 whose exponent is too small, and multiplying by a power of
// two that repairs the exponent and applies the block scale at once. The multiplication is exact, subnormal codes
// included. It also leaves out 2^24 (kUnfold puts it back into the sum), so that scales up to 2^25 have a multiplier;
// larger ones give infinities, never a wrong number.
#pragma once

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/ops.h"

namespace mdi::cuda {

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// The bits of a where mask has ones, else of b: one instruction, which the compiler does not find.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(out) : "r"(mask), "r"(a), "r"(b));
  return out;
}
// A value whose making the compiler shall not repeat at each use.
__device__ inline uint32_t opaque(uint32_t value) {
  asm("" : "+r"(value));
  return value;
}

// A pair of bf16 through act_quant and back, given its block's scale byte.
__device__ inline uint32_t act_quantised(uint32_t pair, uint32_t scale) {
  const float inverse = e8m0_inverse(scale), value = e8m0_value(scale);
  const float2 v = e4m3_values(e4m3_codes(low_half(pair) * inverse, high_half(pair) * inverse));
  return pack_bf16(v.x * value, v.y * value);
}

template <WeightKind kKind>
struct FragmentOf;

// bf16 weights need no expansion: wgmma reads them from shared memory.
template <>
struct FragmentOf<WeightKind::kBF16> {
  static constexpr bool kInShared = true;
  static constexpr int kRowBytes = 128;  // of a stage's row
  __device__ static int column(int k0) { return k0; }
};

// What both packed formats share: which rows a thread needs and their scales, eight blocks of 32 columns at a time.
struct ScaledRows {
  const e8m0* next[2];
  uint2 ahead[2], now[2];
  int row[2];  // inside the stage

  __device__ ScaledRows(const e8m0* scale0, const e8m0* scale1, bool two_weights, int block_rows, int group, int n0,
                        int n, int k, int thread, int warpgroup, int stage_rows, int first_column) {
    const int g = thread % 32 / 4, warp = thread / 32;
    // With two weights the stage holds half of its rows of each, and a thread's two rows are the same row of both.
    row[0] = two_weights ? 32 * warpgroup + 8 * warp + g : 64 * warpgroup + 16 * warp + g;
    row[1] = row[0] + (two_weights ? stage_rows / 2 : 8);
    const int blocks = k / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int local = min(n0 + (two_weights ? row[0] : row[i]), n - 1);
      const int64_t line = (int64_t{group} * n + local) / block_rows;
      next[i] = (two_weights && i == 1 ? scale1 : scale0) + line * blocks + first_column / 32;
    }
    load();
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ahead[i] = __ldg(reinterpret_cast<const uint2*>(next[i]));
      next[i] += 8;
    }
  }
  __device__ void next_scales(bool more) {
    now[0] = ahead[0];
    now[1] = ahead[1];
    if (more) load();
  }
  // The multiplier of block `b` (0..7) of row i, in both halves: 2^(scale + bias).
  template <int kBias>
  __device__ uint32_t multiplier(int i, int b) const {
    const uint32_t byte = (b < 4 ? now[i].x : now[i].y) >> (8 * (b % 4)) & 255u;
    return min(byte + kBias, 255u) * 0x00800080u;
  }
};

template <>
struct FragmentOf<WeightKind::kE4M3> : ScaledRows {
  static constexpr bool kInShared = false;
  static constexpr int kRowBytes = 64;
  static constexpr float kUnfold = 0x1p24f;
  static constexpr int kBias = 120 - 24;  // seven exponent bits of bf16 above those of e4m3
  uint32_t select;                        // bytes 2q and 2q + 1 of eight, each to the top of a half

  __device__ static int column(int k0) { return k0; }
  __device__ FragmentOf(const e8m0* scale0, const e8m0* scale1, bool two_weights, int group, int n0, int n, int k,
                        int thread, int warpgroup, int stage_rows, int first_column)
      : ScaledRows(scale0, scale1, two_weights, 32, group, n0, n, k, thread, warpgroup, stage_rows, first_column) {
    const uint32_t q = static_cast<uint32_t>(thread) % 4;
    select = (2 * q) << 4 | (2 * q + 1) << 12;
  }
  __device__ uint32_t pair(uint32_t low, uint32_t high, uint32_t multiplier) const {
    const uint32_t v = __byte_perm(low, high, select);
    return multiply_pairs((v >> 4 & 0x07F007F0u) | (v & 0x80008000u), multiplier);
  }
  // Step s of the four that share a load of scales; a stage's rows hold kSteps of them.
  template <int kSteps>
  __device__ void expand(uint32_t stage, int s, uint32_t (&a)[4][4]) const {
    static_assert(kSteps == 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto at = stage + static_cast<uint32_t>(row[i]) * 64u;
      const auto swizzle = static_cast<uint32_t>(row[i]) >> 1 & 3u;
#pragma unroll
      for (uint32_t kk = 0; kk < 4; ++kk) {
        const uint4 v = ptx::load_16(at + ((kk ^ swizzle) << 4));
        const uint32_t m = multiplier<kBias>(i, 2 * s + static_cast<int>(kk) / 2);
        a[kk][i] = pair(v.x, v.y, m);
        a[kk][2 + i] = pair(v.z, v.w, m);
      }
    }
  }
};

template <>
struct FragmentOf<WeightKind::kE2M1> : ScaledRows {
  static constexpr bool kInShared = false;
  static constexpr int kRowBytes = 32;
  static constexpr float kUnfold = 0x1p24f;
  static constexpr int kBias = 126 - 24;
  uint32_t scale_byte;    // selects it: the thread's columns of a step lie in one of its two blocks
  uint32_t half, inside;  // where they lie in a step's 32 bytes

  __device__ static int column(int k0) { return k0 / 2; }
  __device__ FragmentOf(const e8m0* scale0, const e8m0* scale1, bool two_weights, int group, int n0, int n, int k,
                        int thread, int warpgroup, int stage_rows, int first_column)
      : ScaledRows(scale0, scale1, two_weights, 1, group, n0, n, k, thread, warpgroup, stage_rows, first_column) {
    const uint32_t q = static_cast<uint32_t>(thread) % 4;
    scale_byte = 0x4440 + q / 2;
    half = q / 2;
    inside = q % 2 * 8u;
  }
  // The pair of codes at bits kAt and kAt + 16: their magnitudes to the top of the mantissas, their signs to the top.
  // `signs` has the sign bits of every other code, at the same places; the ones in between fall to where a magnitude
  // goes, so that one selection takes both.
  template <int kAt>
  __device__ static uint32_t pair(uint32_t word, uint32_t signs, uint32_t multiplier) {
    constexpr uint32_t kMagnitude = 0x01C001C0u;
    const uint32_t magnitude = kAt <= 6 ? word << (6 - kAt) : word >> (kAt - 6);
    return multiply_pairs(select_bits(kMagnitude, magnitude, signs << (12 - kAt)), multiplier);
  }
  // x in the order of word_order.cuh.
  template <int kSteps>
  __device__ void expand(uint32_t stage, int s, uint32_t (&a)[4][4]) const {
    static_assert(kSteps == 1 || kSteps == 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto r = static_cast<uint32_t>(row[i]);
      const auto swizzle = kSteps == 1 ? r >> 2 & 1u : r & 7u;
      const auto chunk = (static_cast<uint32_t>(2 * (s % kSteps)) + half) ^ swizzle;
      const uint2 v = ptx::load_8(stage + r * (32u * kSteps) + (chunk << 4) + inside);
      const uint32_t scale = __byte_perm(s < 2 ? now[i].x : now[i].y, 0, scale_byte + 2 * (s % 2));
      const uint32_t m = min(scale + kBias, 255u) * 0x00800080u;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t word = h == 0 ? v.x : v.y;
        const uint32_t even = opaque(word & 0x08080808u), odd = opaque(word & 0x80808080u);
        a[2 * h][i] = pair<0>(word, even, m);
        a[2 * h][2 + i] = pair<4>(word, odd, m);
        a[2 * h + 1][i] = pair<8>(word, even, m);
        a[2 * h + 1][2 + i] = pair<12>(word, odd, m);
      }
    }
  }
};

}  // namespace mdi::cuda
