// The tensor-core kernel behind grouped_product.
//
// Work of a released 4096-row product: 2 m n k operations at 672 TFLOP/s (bf16, sustained). Roles are swapped: weights
// are the M side of wgmma (128 rows a block, 64 a warpgroup), tokens the N side (32 to 256, a kernel for each width:
// with several in one kernel the compiler gives up on keeping the products asynchronous). So
//  - weights go from packed shared memory to the A registers of the warpgroup that multiplies them: each code is read
//    once, expanded once (2.5 to 3 instructions a weight, a fifth of the issue slots of a 256-token tile) and never
//    written back; through shared memory the expansion would need more of its bandwidth than wgmma leaves;
//  - a group's rows pad to a multiple of the tile's width, which is free: experts have about 256 rows, in any number.
// Persistent blocks of three warpgroups: one thread of the first fills a ring of stages by tensor copies, the other two
// expand and multiply: the expansion of step s + 1 overlaps the products of step s (two sets of A registers), and the
// ring runs on through the epilogue. Counts of rows are read on the device; the host knows only a bound.
#pragma once

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_fragments.cuh"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

inline constexpr int kThreads = 384;
inline constexpr int kTileRows = 128;  // weight rows a block
inline constexpr int kMaxStages = 24;
inline constexpr int kStageColumns = 64;  // of K: one 128-byte row of x
inline constexpr int kMaxGroups = 512;
inline constexpr int kSharedBytes = 227 * 1024;  // the most that a block of sm_90 may have

struct GroupedParams {
  CUtensorMap x, w0, w1;
  const e8m0* scale0;
  const e8m0* scale1;
  const int32_t* row_begin;
  bf16* y;
  float* y_f32;
  const float* sum;
  const float* row_weight;
  int64_t ldy;
  float limit;
  int32_t rows, n, k, groups, row_tiles, n_per_column_group;
};

// ---- tiles ----------------------------------------------------------------------------------------------------------
struct GroupTile {
  int group, n0;  // first weight row inside the group
  int row, rows;  // first row of x, rows that exist
};

template <int kTokens>
struct TileList {
  const int32_t* row_begin;   // shared [groups + 1]
  const int32_t* tile_begin;  // shared [groups + 1]
  int tiles;

  // Token tiles are the fastest index: they share the weights, which come from memory once.
  __device__ GroupTile at(int tile, int& group, int rows_per_tile) const {
    while (tile >= tile_begin[group + 1]) ++group;
    const int count = row_begin[group + 1] - row_begin[group];
    const int token_tiles = (count + kTokens - 1) / kTokens;
    const int local = tile - tile_begin[group];
    const int first = local % token_tiles * kTokens;
    return {.group = group,
            .n0 = local / token_tiles * rows_per_tile,
            .row = row_begin[group] + first,
            .rows = min(kTokens, count - first)};
  }
};

// By the first warp; then a __syncthreads.
template <int kTokens>
__device__ inline void list_tiles(const GroupedParams& p, int32_t* row_begin, int32_t* tile_begin) {
  const int lane = static_cast<int>(threadIdx.x);
  int carry = 0;
  for (int base = 0; base < p.groups; base += 32) {
    const int g = base + lane;
    int begin = 0, end = 0;
    if (g < p.groups) {
      begin = p.row_begin != nullptr ? p.row_begin[g] : 0;
      end = p.row_begin != nullptr ? p.row_begin[g + 1] : p.rows;
      row_begin[g] = begin;
      if (g + 1 == p.groups) row_begin[p.groups] = end;
    }
    int sum = (end - begin + kTokens - 1) / kTokens * p.row_tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(0xFFFFFFFFu, sum, step);
      if (lane >= step) sum += left;
    }
    if (g < p.groups) tile_begin[g + 1] = carry + sum;
    carry += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  if (lane == 0) tile_begin[0] = 0;
}

// ---- shared memory --------------------------------------------------------------------------------------------------
template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
struct SharedLayout {
  static constexpr int kWeights = kTileRows * FragmentOf<kKind>::kRowBytes;
  static constexpr int kX = kTokens * 128;
  static constexpr int kStage = kX + kWeights;
  // Of a warpgroup: two buffers of 32 tokens; fp32 rows are padded against bank conflicts.
  static constexpr int kStaging = kEpilogue == Epilogue::kF32 ? 2 * 32 * 272 : 2 * 32 * 128;
  static constexpr int kFixed = 1024 + 2 * kStaging + 2 * kMaxStages * 8 + 2 * (kMaxGroups + 1) * 4;
  static constexpr int kFitting = (kSharedBytes - kFixed) / kStage;
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kTotal = kStages * kStage + kFixed;
  static_assert(kStages >= 3 && kX % 1024 == 0);
};

// ---- the epilogue ---------------------------------------------------------------------------------------------------
struct Writer {
  uint32_t staging;   // this warpgroup's
  int thread, group;  // inside the warpgroup; 0 or 1: which warpgroup
};

// kWidth tokens (32, or 16 at the end) of a warpgroup's 64 outputs, from registers (weights down, tokens across) to
// rows of tokens. `d`: the accumulators of those tokens.
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
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      const int token = 8 * (j + lane / 16) + lane % 8, chunk = 2 * warp + lane / 8 % 2;
      ptx::store_matrices_transposed(buffer + static_cast<uint32_t>(token * 128 + ((chunk ^ (token & 7)) << 4)),
                                     pack_bf16(d[4 * j], d[4 * j + 1]), pack_bf16(d[4 * j + 2], d[4 * j + 3]),
                                     pack_bf16(d[4 * j + 4], d[4 * j + 5]), pack_bf16(d[4 * j + 6], d[4 * j + 7]));
    }
  }
  // One barrier a chunk: the other buffer's readers have passed it before anybody writes there again.
  ptx::named_barrier(static_cast<uint32_t>(1 + w.group), 128);

  if constexpr (kEpilogue == Epilogue::kSwiglu) {
    const int token = w.thread / 4, chunk = w.thread % 4, column = tile.n0 + 32 * w.group + 8 * chunk;
    uint4 v = ptx::load_16(buffer + static_cast<uint32_t>(token * 64 + ((chunk ^ (token >> 1 & 3)) << 4)));
    const uint32_t scale = scale_byte(group_max(magnitude_max(v), 4), kActFloor, kInverse448);
    v = {act_quantised(v.x, scale), act_quantised(v.y, scale), act_quantised(v.z, scale), act_quantised(v.w, scale)};
    if (token0 + token < tile.rows && column < p.n) {
      *reinterpret_cast<uint4*>(p.y + (tile.row + token0 + token) * p.ldy + column) = v;
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
      *reinterpret_cast<uint4*>(p.y + at) = v;
    }
  }
}

// ---- the products of one tile ---------------------------------------------------------------------------------------
template <int kStages, int kBytes>
struct Ring {
  uint32_t base, full, empty;  // shared addresses: stages, barriers
  int stage;
  uint32_t parity;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
  __device__ uint32_t at() const { return base + static_cast<uint32_t>(stage * kBytes); }
  __device__ uint32_t full_barrier() const { return full + 8u * static_cast<uint32_t>(stage); }
  __device__ uint32_t empty_barrier() const { return empty + 8u * static_cast<uint32_t>(stage); }
};

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__device__ __forceinline__ void multiply_tile(
    const GroupedParams& p, const GroupTile& tile,
    Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStages, SharedLayout<kKind, kEpilogue, kTokens>::kStage>& ring,
    const Writer& writer) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  float d[kTokens / 2] = {};  // starting from zeros costs less than a flag in every product
  uint32_t behind = 0;        // the barrier of the stage whose products may still run
  const auto release = [&] {
    if (behind != 0 && threadIdx.x % 32 == 0) ptx::barrier_arrive(behind);
  };

  if constexpr (Fragment::kInShared) {
    const int steps = (p.k + kStageColumns - 1) / kStageColumns;
    for (int step = 0; step < steps; ++step) {
      ptx::barrier_wait(ring.full_barrier(), ring.parity);
      const uint64_t x = ptx::descriptor_128(ring.at());
      const uint64_t w = ptx::descriptor_128(ring.at() + Layout::kX + static_cast<uint32_t>(writer.group) * 8192u);
      ptx::wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        wgmma_bf16_ss(d, w + static_cast<uint64_t>(2 * kk), x + static_cast<uint64_t>(2 * kk), 1);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      release();
      behind = ring.empty_barrier();
      ring.advance();
    }
  } else {
    Fragment fragment(p.scale0, p.scale1, kEpilogue == Epilogue::kSwiglu, tile.group, tile.n0, p.n, p.k, writer.thread,
                      writer.group);
    uint32_t a[2][4][4];
    for (int k0 = 0; k0 < p.k; k0 += 4 * kStageColumns) {
      fragment.next_scales(k0 + 4 * kStageColumns < p.k);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        ptx::barrier_wait(ring.full_barrier(), ring.parity);
        fragment.expand(ring.at() + Layout::kX, s, a[s % 2]);
        const uint64_t x = ptx::descriptor_128(ring.at());
        ptx::wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
          wgmma_bf16_rs(d, a[s % 2][kk], x + static_cast<uint64_t>(2 * kk), 1);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        release();
        behind = ring.empty_barrier();
        ring.advance();
      }
    }
  }
  ptx::wgmma_wait<0>();
  release();

  if constexpr (!Fragment::kInShared) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) d[i] *= Fragment::kUnfold;
  }
#pragma unroll
  for (int c = 0; c < (kTokens + 31) / 32; ++c) {
    constexpr int kBuffer = Layout::kStaging / 2;
    if (32 * c >= tile.rows) continue;
    if (32 * c + 32 <= kTokens) {
      write_chunk<kEpilogue, kBuffer, 32>(p, tile, writer, 32 * c, d + 16 * c);
    } else {
      write_chunk<kEpilogue, kBuffer, 16>(p, tile, writer, 32 * c, d + 16 * c);
    }
  }
  // The next tile starts with the first buffer again.
  ptx::named_barrier(static_cast<uint32_t>(1 + writer.group), 128);
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__device__ __forceinline__ void produce(
    const GroupedParams& p, const TileList<kTokens>& list,
    Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStages, SharedLayout<kKind, kEpilogue, kTokens>::kStage> ring,
    int rows_per_tile) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  int group = 0;
  ring.parity = 1;  // all stages are free
  for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
    const GroupTile tile = list.at(index, group, rows_per_tile);
    const int x0 = p.n_per_column_group > 0 ? tile.n0 / p.n_per_column_group * p.k : 0;
    const int w_row = tile.group * p.n + tile.n0;
    for (int k0 = 0; k0 < p.k; k0 += kStageColumns) {
      ptx::barrier_wait(ring.empty_barrier(), ring.parity);
      ptx::barrier_arrive_expect(ring.full_barrier(), Layout::kStage);
      ptx::tensor_load(ring.at(), &p.x, x0 + k0, tile.row, ring.full_barrier());
      const int column = Fragment::column(k0);
      ptx::tensor_load(ring.at() + Layout::kX, &p.w0, column, w_row, ring.full_barrier());
      if constexpr (kEpilogue == Epilogue::kSwiglu) {
        ptx::tensor_load(ring.at() + Layout::kX + Layout::kWeights / 2, &p.w1, column, w_row, ring.full_barrier());
      }
      ring.advance();
    }
  }
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ GroupedParams p) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  extern __shared__ uint8_t raw[];
  const uint32_t base = (ptx::shared_address(raw) + 1023u) & ~1023u;
  const uint32_t staging = base + Layout::kStages * Layout::kStage;
  const uint32_t barriers = staging + 2 * Layout::kStaging;
  auto* const row_begin = reinterpret_cast<int32_t*>(raw + (barriers + 2 * kMaxStages * 8 - ptx::shared_address(raw)));
  int32_t* const tile_begin = row_begin + p.groups + 1;
  constexpr int kRowsPerTile = kEpilogue == Epilogue::kSwiglu ? kTileRows / 2 : kTileRows;

  if (threadIdx.x < 32) list_tiles<kTokens>(p, row_begin, tile_begin);
  if (threadIdx.x == 32) {
    for (uint32_t s = 0; s < Layout::kStages; ++s) {
      ptx::barrier_init(barriers + 8 * s, 1);
      ptx::barrier_init(barriers + 8 * (kMaxStages + s), 8);  // one arrival a consumer warp
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const TileList<kTokens> list{.row_begin = row_begin, .tile_begin = tile_begin, .tiles = tile_begin[p.groups]};
  Ring<Layout::kStages, Layout::kStage> ring{
      .base = base, .full = barriers, .empty = barriers + 8 * kMaxStages, .stage = 0, .parity = 0};
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    ptx::fewer_registers<40>();
    if (threadIdx.x == 0) produce<kKind, kEpilogue, kTokens>(p, list, ring, kRowsPerTile);
  } else {
    ptx::more_registers<232>();
    const Writer writer{.staging = staging + static_cast<uint32_t>((warpgroup - 1) * Layout::kStaging),
                        .thread = static_cast<int>(threadIdx.x) % 128,
                        .group = warpgroup - 1};
    int group = 0;
    for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
      multiply_tile<kKind, kEpilogue, kTokens>(p, list.at(index, group, kRowsPerTile), ring, writer);
    }
  }
}

}  // namespace mdi::cuda
