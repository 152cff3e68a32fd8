// The tensor-core kernel behind grouped_product.
//
// Roles are swapped: weights are the M side of wgmma (64 rows a warpgroup), tokens the N side (16 to 256, a kernel for
// each width: with several in one kernel the compiler serialises the products). So weights go from packed shared memory
// to the A registers of the warpgroup that multiplies them, each code is read once, expanded once and never written
// back, and a group's rows pad to any multiple of 16. One thread fills a ring of stages by tensor copies, one to
// four warpgroups expand and multiply: the expansion of step s + 1 overlaps the products of step s (two sets of
// registers). The ring runs on through the epilogue; counts of rows are read on the device.
//
// Limit of a 4096-row product: 2 m n k operations at 672 TFLOP/s (bf16, sustained). Reached: wo_b 98%, wo_a and engram
// 95%, wq_b 93%, index wq_b 91%, wq_a 80% and wkv 68% (few tiles); experts 75% with 24.5k uniform rows, of which 13
// points are padding (tiles of 144 for 255 rows). A second machine gave 3% less.
// Limit of decode: each weight read once. Reached at 256 tokens: experts 59% (2.5 TB/s), wq_b 50%, head (bf16) 96%.
// What made the experts faster (docs/journal/005): their columns in an order in which a thread owns whole words, so
// that a pair of weights takes 2.5 integer operations at half rate instead of three; four warpgroups that share the
// rows; and stages of four steps, because boxes of 32 bytes a row reach 86% of the memory's rate at best and whole
// lines all of it. Without the expansion the copies take 62% of the time, so it is the expansion that is left.
#pragma once

#include "kernels/cuda/grouped_epilogue.cuh"
#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_fragments.cuh"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

inline constexpr int kMaxStages = 24;
inline constexpr int kStepColumns = 64;  // of K: one 128-byte row of x
inline constexpr int kMaxGroups = 512;
inline constexpr int kSharedBytes = 227 * 1024;  // the most that a block of sm_90 may have

// ---- shared memory --------------------------------------------------------------------------------------------------
template <WeightKind kKind, int kTokens>
struct BlockShape {
  static constexpr bool kNarrow = !FragmentOf<kKind>::kInShared && kTokens <= 64;
  // Warpgroups that multiply. Four share the rows of a narrow tile where those are as many bytes as the weights; apart
  // from that, more blocks that wait for nobody are faster.
  static constexpr int kConsumers = !kNarrow ? 2 : kKind == WeightKind::kE2M1 ? 4 : 1;
  static constexpr int kThreads = 128 * kConsumers + (kNarrow ? 32 : 128);    // the last warp or warpgroup copies
  static constexpr int kBlocks = kConsumers > 1 ? 1 : kTokens <= 32 ? 4 : 3;  // a multiprocessor
  static constexpr int kRows = 64 * kConsumers;                               // weight rows of a tile
  // Steps of a stage. Packed four bits a weight, a step's rows are 32 bytes: copies of whole lines of 128 are faster
  // where weights are what is read.
  static constexpr int kSteps = kNarrow && kKind == WeightKind::kE2M1 ? 4 : 1;
};

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
struct SharedLayout {
  using Shape = BlockShape<kKind, kTokens>;
  static constexpr int kOutputs = kEpilogue == Epilogue::kSwiglu ? Shape::kRows / 2 : Shape::kRows;  // of a tile
  static constexpr int kWeights = Shape::kRows * FragmentOf<kKind>::kRowBytes * Shape::kSteps;
  static constexpr int kX = kTokens * 128;  // of a step
  static constexpr int kStage = kX * Shape::kSteps + kWeights;
  // Of a warpgroup: two buffers of 32 tokens, or one when there is no more; fp32 rows are padded against bank
  // conflicts.
  static constexpr int kBuffer = 32 * (kEpilogue == Epilogue::kF32 ? 272 : 128);
  static constexpr int kStaging = kTokens > 32 ? 2 * kBuffer : kBuffer;
  static constexpr int kFixed = 1024 + Shape::kConsumers * kStaging + 2 * kMaxStages * 8 + 2 * (kMaxGroups + 1) * 4;
  static constexpr int kRoom = (kSharedBytes + 1024) / Shape::kBlocks - 1024 - kFixed;
  static constexpr int kStages = kRoom / kStage < kMaxStages ? kRoom / kStage : kMaxStages;
  static constexpr int kTotal = kStages * kStage + kFixed;
  static_assert(kStages >= 2 && kStages * Shape::kSteps >= 3 && kX % 1024 == 0 && kWeights % 1024 == 0);
};

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
    const int steps = (p.k + kStepColumns - 1) / kStepColumns;
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
                      writer.group, Layout::Shape::kRows);
    uint32_t a[2][4][4];
    for (int k0 = 0; k0 < p.k; k0 += 4 * kStepColumns) {
      fragment.next_scales(k0 + 4 * kStepColumns < p.k);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        constexpr int kSteps = Layout::Shape::kSteps;
        const int inside = s % kSteps;
        if (inside == 0) ptx::barrier_wait(ring.full_barrier(), ring.parity);
        fragment.template expand<kSteps>(ring.at() + kSteps * Layout::kX, s, a[s % 2]);
        const uint64_t x = ptx::descriptor_128(ring.at() + static_cast<uint32_t>(inside * Layout::kX));
        ptx::wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
          wgmma_bf16_rs(d, a[s % 2][kk], x + static_cast<uint64_t>(2 * kk), 1);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (inside == 0) release();
        if (inside == kSteps - 1) {
          behind = ring.empty_barrier();
          ring.advance();
        }
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
    if (32 * c >= tile.rows) continue;
    if (32 * c + 32 <= kTokens) {
      write_chunk<kEpilogue, Layout::kBuffer, 32>(p, tile, writer, 32 * c, d + 16 * c);
    } else {
      write_chunk<kEpilogue, Layout::kBuffer, 16>(p, tile, writer, 32 * c, d + 16 * c);
    }
  }
  // The next tile starts with the first buffer again.
  warpgroup_barrier(writer.group);
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__device__ __forceinline__ void produce(
    const GroupedParams& p, const TileList<kTokens>& list,
    Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStages, SharedLayout<kKind, kEpilogue, kTokens>::kStage> ring) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  int group = 0;
  ring.parity = 1;  // all stages are free
  for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
    const GroupTile tile = list.at(index, group, Layout::kOutputs);
    const int x0 = p.n_per_column_group > 0 ? tile.n0 / p.n_per_column_group * p.k : 0;
    const int w_row = tile.group * p.n + tile.n0;
    constexpr int kSteps = Layout::Shape::kSteps;
    for (int k0 = 0; k0 < p.k; k0 += kSteps * kStepColumns) {
      ptx::barrier_wait(ring.empty_barrier(), ring.parity);
      ptx::barrier_arrive_expect(ring.full_barrier(), Layout::kStage);
      const int column = Fragment::column(k0);
      const uint32_t weights = ring.at() + kSteps * Layout::kX;
      ptx::tensor_load(weights, &p.w0, column, w_row, ring.full_barrier());
      if constexpr (kEpilogue == Epilogue::kSwiglu) {
        ptx::tensor_load(weights + Layout::kWeights / 2, &p.w1, column, w_row, ring.full_barrier());
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        ptx::tensor_load(ring.at() + static_cast<uint32_t>(s * Layout::kX), &p.x, x0 + k0 + s * kStepColumns, tile.row,
                         ring.full_barrier());
      }
      ring.advance();
    }
  }
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__global__ void __launch_bounds__(BlockShape<kKind, kTokens>::kThreads, BlockShape<kKind, kTokens>::kBlocks)
    grouped_kernel(const __grid_constant__ GroupedParams p) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  using Shape = typename Layout::Shape;
  extern __shared__ uint8_t raw[];
  const uint32_t base = (ptx::shared_address(raw) + 1023u) & ~1023u;
  const uint32_t staging = base + Layout::kStages * Layout::kStage;
  const uint32_t barriers = staging + Shape::kConsumers * Layout::kStaging;
  auto* const row_begin = reinterpret_cast<int32_t*>(raw + (barriers + 2 * kMaxStages * 8 - ptx::shared_address(raw)));
  int32_t* const tile_begin = row_begin + p.groups + 1;

  if (threadIdx.x < 32) list_tiles<kTokens>(p, row_begin, tile_begin);
  if (threadIdx.x == 32) {
    for (uint32_t s = 0; s < Layout::kStages; ++s) {
      ptx::barrier_init(barriers + 8 * s, 1);
      ptx::barrier_init(barriers + 8 * (kMaxStages + s), 4 * Shape::kConsumers);  // one arrival a consumer warp
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  const TileList<kTokens> list{.row_begin = row_begin, .tile_begin = tile_begin, .tiles = tile_begin[p.groups]};
  Ring<Layout::kStages, Layout::kStage> ring{
      .base = base, .full = barriers, .empty = barriers + 8 * kMaxStages, .stage = 0, .parity = 0};
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == Shape::kConsumers) {
    if constexpr (!Shape::kNarrow) ptx::fewer_registers<40>();
    if (threadIdx.x == 128 * Shape::kConsumers) produce<kKind, kEpilogue, kTokens>(p, list, ring);
  } else {
    if constexpr (!Shape::kNarrow) ptx::more_registers<232>();
    const Writer writer{.staging = staging + static_cast<uint32_t>(warpgroup * Layout::kStaging),
                        .thread = static_cast<int>(threadIdx.x) % 128,
                        .group = warpgroup};
    int group = 0;
    for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
      multiply_tile<kKind, kEpilogue, kTokens>(p, list.at(index, group, Layout::kOutputs), ring, writer);
    }
  }
}

}  // namespace mdi::cuda
