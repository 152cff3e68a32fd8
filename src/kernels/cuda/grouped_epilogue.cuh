// From the accumulators of grouped_kernel (weights down, tokens across) to rows of tokens in memory, with what each
// caller wants done to them on the way.
#pragma once

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_fragments.cuh"
#include "kernels/cuda/word_order.cuh"

namespace mdi::cuda {

struct Writer {
  uint32_t staging;   // this warpgroup's
  int thread, group;  // inside the warpgroup; 0..3: which warpgroup
};

// Constant barrier numbers: with a computed one the compiler reserves all sixteen.
__device__ inline void warpgroup_barrier(int group) {
  switch (group) {
    case 0:
      return ptx::named_barrier(1, 128);
    case 1:
      return ptx::named_barrier(2, 128);
    case 2:
      return ptx::named_barrier(3, 128);
    default:
      return ptx::named_barrier(4, 128);
  }
}

// VisionLinearArgs' last step on two neighbours: y holds bf16(product + bias).
__device__ inline float exact_gelu(float x) {
  return __fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, erff(__fmul_rn(x, 0x1.6a09e6p-1f))));
}
__device__ inline uint32_t gelu_pair(uint32_t y) {
  return pack_bf16(exact_gelu(low_half(y)), exact_gelu(high_half(y)));
}
__device__ inline uint32_t residual_pair(uint32_t y, uint32_t residual) {
  return pack_bf16(low_half(residual) + low_half(y), high_half(residual) + high_half(y));
}

// kWidth tokens (32, or 16 or 24 at the end) of a warpgroup's 64 outputs, from registers (weights down, tokens across)
// to rows of tokens. `d`: the accumulators of those tokens.
template <Epilogue kEpilogue, int kBuffer, int kWidth>
__device__ inline void write_chunk(const GroupedParams& p, const GroupTile& tile, const Writer& w, int token0,
                                   const float* d) {
  const int lane = w.thread % 32, warp = w.thread / 32, g = lane / 4, q = lane % 4;
  const uint32_t buffer = w.staging + static_cast<uint32_t>(token0 / 32 % 2 * kBuffer);
  if constexpr (kEpilogue == Epilogue::kF32) {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + 2 * q + i % 2, n = 16 * warp + g + i / 2 * 8;
        ptx::store_float(buffer + static_cast<uint32_t>(token * 272 + n * 4), d[4 * j + i]);
      }
    }
  } else if constexpr (kEpilogue == Epilogue::kSwiglu) {
    uint32_t t[4] = {};
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      float pair[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = token0 + 8 * j + 2 * q + i;
        const float weight = p.row_weight == nullptr || token >= tile.rows ? 1.0f : p.row_weight[tile.row + token];
        const float gate = rounded(d[4 * j + i]), up = rounded(d[4 * j + 2 + i]);
        const float low = p.limit < gate ? p.limit : gate;
        const float u = up < -p.limit ? -p.limit : p.limit < up ? p.limit : up;
        pair[i] = weight * (__fdiv_rn(low, 1.0f + expf(-low)) * u);
      }
      t[j] = pack_bf16(pair[0], pair[1]);
    }
    const int token = lane;  // matrix j = lane / 8 holds tokens 8 j and on
    ptx::store_matrices_transposed(buffer + static_cast<uint32_t>(token * 64 + ((warp ^ (token >> 1 & 3)) << 4)), t[0],
                                   t[1], t[2], t[3]);
  } else {
    float low = 0, high = 0;  // what is added to this thread's two outputs
    if constexpr (kEpilogue == Epilogue::kVision) {
      const int n = tile.n0 + 64 * w.group + 16 * warp + g;
      if (p.bias != nullptr && n < p.n) low = widen(p.bias[n]);
      if (p.bias != nullptr && n + 8 < p.n) high = widen(p.bias[n + 8]);
    }
    const auto at = [&](int i) {
      if constexpr (kEpilogue != Epilogue::kVision) return d[i];
      return d[i] + (i % 4 < 2 ? low : high);
    };
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      const int next = j + 1 < kWidth / 8 ? 4 * j + 4 : 4 * j;  // past the end: any will do
      const int token = 8 * (j + lane / 16) + lane % 8, chunk = 2 * warp + lane / 8 % 2;
      ptx::store_matrices_transposed(buffer + static_cast<uint32_t>(token * 128 + ((chunk ^ (token & 7)) << 4)),
                                     pack_bf16(at(4 * j), at(4 * j + 1)), pack_bf16(at(4 * j + 2), at(4 * j + 3)),
                                     pack_bf16(at(next), at(next + 1)), pack_bf16(at(next + 2), at(next + 3)));
    }
  }
  // One barrier a chunk: the other buffer's readers have passed it before anybody writes there again.
  warpgroup_barrier(w.group);

  if constexpr (kEpilogue == Epilogue::kSwiglu) {
    const int token = w.thread / 4, chunk = w.thread % 4, column = tile.n0 + 32 * w.group + 8 * chunk;
    uint4 v = ptx::load_16(buffer + static_cast<uint32_t>(token * 64 + ((chunk ^ (token >> 1 & 3)) << 4)));
    const uint32_t scale = scale_byte(group_max(magnitude_max(v), 4), kActFloor, kInverse448);
    v = {act_quantised(v.x, scale), act_quantised(v.y, scale), act_quantised(v.z, scale), act_quantised(v.w, scale)};
    bf16* const y = p.y + (tile.row + token0 + token) * p.ldy;
    if (p.y_words) {
      // Half of a block of 64: lanes c and c + 2 have neighbours of the new order, and each writes two of the four.
      v = word_pairs(v);
      const bool upper = chunk >= 2;
      const uint32_t far0 = __shfl_xor_sync(0xFFFFFFFFu, upper ? v.x : v.z, 2);
      const uint32_t far1 = __shfl_xor_sync(0xFFFFFFFFu, upper ? v.y : v.w, 2);
      const uint2 first = upper ? uint2{far0, v.z} : uint2{v.x, far0};
      const uint2 second = upper ? uint2{far1, v.w} : uint2{v.y, far1};
      const int at = column / 64 * 64 + chunk % 2 * 32 + column % 64 / 32 * 4 + (upper ? 16 : 0);
      if (token0 + token < tile.rows && column < p.n) {
        *reinterpret_cast<uint2*>(y + at) = first;
        *reinterpret_cast<uint2*>(y + at + 8) = second;
      }
    } else if (token0 + token < tile.rows && column < p.n) {
      *reinterpret_cast<uint4*>(y + column) = v;
    }
  } else if constexpr (kEpilogue == Epilogue::kF32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = w.thread / 16 + 8 * i, column = tile.n0 + 64 * w.group + 4 * (w.thread % 16);
      if (token0 + token >= tile.rows || column >= p.n) continue;
      *reinterpret_cast<uint4*>(p.y_f32 + (tile.row + token0 + token) * p.ldy + column) =
          ptx::load_16(buffer + static_cast<uint32_t>(token * 272 + w.thread % 16 * 16));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = w.thread / 8 + 16 * i, chunk = w.thread % 8, column = tile.n0 + 64 * w.group + 8 * chunk;
      if (token0 + token >= tile.rows || column >= p.n) continue;
      uint4 v = ptx::load_16(buffer + static_cast<uint32_t>(token * 128 + ((chunk ^ (token & 7)) << 4)));
      const int64_t at = (tile.row + token0 + token) * p.ldy + column;
      if constexpr (kEpilogue == Epilogue::kAdd) {
        const float4 a = *reinterpret_cast<const float4*>(p.sum + at);
        const float4 b = *reinterpret_cast<const float4*>(p.sum + at + 4);
        v.x = pack_bf16(a.x + low_half(v.x), a.y + high_half(v.x));
        v.y = pack_bf16(a.z + low_half(v.y), a.w + high_half(v.y));
        v.z = pack_bf16(b.x + low_half(v.z), b.y + high_half(v.z));
        v.w = pack_bf16(b.z + low_half(v.w), b.w + high_half(v.w));
      }
      if constexpr (kEpilogue == Epilogue::kVision) {
        if (p.gelu) v = {gelu_pair(v.x), gelu_pair(v.y), gelu_pair(v.z), gelu_pair(v.w)};
        if (p.residual != nullptr) {
          const uint4 r = *reinterpret_cast<const uint4*>(p.residual + at);
          v = {residual_pair(v.x, r.x), residual_pair(v.y, r.y), residual_pair(v.z, r.z), residual_pair(v.w, r.w)};
        }
      }
      *reinterpret_cast<uint4*>(p.y + at) = v;
    }
  }
}

}  // namespace mdi::cuda
