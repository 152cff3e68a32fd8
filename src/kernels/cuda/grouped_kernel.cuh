// The tensor-core kernel behind grouped_product.
//
// Roles are swapped: weights are the M side of wgmma (64 rows a warpgroup), tokens the N side (16 to 256, a kernel for
// each width: with several in one kernel the compiler serialises the products). So weights go from packed shared memory
// to the A registers of the warpgroup that multiplies them, each code is read once, expanded once and never written
// back, and a group's rows pad to any multiple of 16, or to 24. One thread fills a ring of stages by tensor copies, one
// to four warpgroups expand and multiply: the expansion of step s + 1 overlaps the products of step s (two sets of
// registers). The ring runs on through the epilogue; counts of rows are read on the device.
//
// Limit of a 4096-row product: 2 m n k operations at 672 TFLOP/s (bf16, sustained). Reached: wo_b 98%, wo_a and engram
// 95%, wq_b 93%, index wq_b 91%, wq_a 80% and wkv 68% (few tiles); experts 75% with 24.5k uniform rows, of which 13
// points are padding (tiles of 144 for 255 rows). A second machine gave 3% less.
// Limit of decode: each weight read once. Reached at 64 rows: experts 70%, wq_b 49%, wo_b 30%, head (bf16) 96%.
// What made the experts faster (docs/journal/005): their columns in an order in which a thread owns whole words, so
// that a pair of weights takes 2.5 integer operations at half rate instead of three; four warpgroups that share the
// rows; and stages of four steps, because boxes of 32 bytes a row reach 86% of the memory's rate at best and whole
// lines all of it. And (docs/journal/006) 402 instructions for four steps instead of 511: descriptors that the compiler
// knows to be uniform, and six masks a word of codes instead of eight.
//
// Where K is split (parts_of_k) the parts are summed one by one and then added in order: by a cluster of blocks at few
// rows, by one block otherwise. Products of few columns are chains of 80 steps on a few multiprocessors without that.
#pragma once

#include "kernels/cuda/grouped_epilogue.cuh"
#include "kernels/cuda/grouped_layout.cuh"
#include "kernels/cuda/grouped_tiles.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_fragments.cuh"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

// ---- the products of one tile ---------------------------------------------------------------------------------------
// Columns of K, at least one; multiples of 256 but for the last end.
struct Columns {
  int begin, end;
};
__device__ inline Columns columns_of_part(const GroupedParams& p, int part) {
  const int units = (p.k + 255) / 256;
  return {units * part / p.parts * 256, min(units * (part + 1) / p.parts * 256, p.k)};
}

// d += the products of columns [at.begin, at.end); `end`: of the columns that the block takes in all.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
struct Multiplier {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  uint32_t behind = 0;  // the barrier of the stage whose products may still run

  __device__ void release() const {
    if (behind != 0 && threadIdx.x % 32 == 0) ptx::barrier_arrive(behind);
  }
  // d may be read from here on; said to the compiler, which would copy it before the products are done.
  __device__ void finish(float (&d)[kTokens / 2]) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (float& v : d) asm volatile("" : "+f"(v)::"memory");
    release();
    behind = 0;
  }
  __device__ __forceinline__ void run(Fragment& fragment, Ring<Layout::kStage>& ring, Columns at, int end,
                                      float (&d)[kTokens / 2]) {
    uint32_t a[2][4][4];
    uint64_t stage_x = 0;
    // Never empty: else the compiler chooses d behind the loop, and copies it before the last products are done.
    int k0 = at.begin;
    do {
      fragment.next_scales(k0 + 4 * kStepColumns < end);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        constexpr int kSteps = Layout::Shape::kSteps;
        const int inside = s % kSteps;
        if (inside == 0) {
          ptx::barrier_wait(ring.full_barrier(), ring.parity);
          stage_x = ptx::descriptor_128(ptx::uniform(ring.at()));
        }
        fragment.template expand<kSteps>(ring.at() + kSteps * Layout::kX, s, a[s % 2]);
        const uint64_t x = stage_x + static_cast<uint64_t>(inside * Layout::kX / 16);
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
      k0 += 4 * kStepColumns;
    } while (k0 < at.end);
  }
  // The same for weights that wgmma reads from shared memory.
  __device__ __forceinline__ void run_shared(const Writer& writer, Ring<Layout::kStage>& ring, Columns at,
                                             float (&d)[kTokens / 2]) {
    int k0 = at.begin;
    do {
      ptx::barrier_wait(ring.full_barrier(), ring.parity);
      const uint32_t stage = ptx::uniform(ring.at());
      const uint64_t x = ptx::descriptor_128(stage);
      const uint64_t w =
          ptx::descriptor_128(stage + Layout::kX + ptx::uniform(static_cast<uint32_t>(writer.group)) * 8192u);
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
      k0 += kStepColumns;
    } while (k0 < at.end);
  }
};

template <WeightKind kKind, int kTokens>
__device__ __forceinline__ void unfold(float (&d)[kTokens / 2]) {
  if constexpr (!FragmentOf<kKind>::kInShared) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) d[i] *= FragmentOf<kKind>::kUnfold;
  }
}

// All columns of one tile by one block.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens, bool kSplit>
__device__ __forceinline__ void multiply_tile(const GroupedParams& p, const GroupTile& tile,
                                              Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStage>& ring,
                                              const Writer& writer) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  float d[kTokens / 2] = {};  // starting from zeros costs less than a flag in every product
  Multiplier<kKind, kEpilogue, kTokens> products;
  const auto each_part = [&](const auto& multiply) {
    if constexpr (!kSplit) {
      multiply(Columns{0, p.k});
      products.finish(d);
    } else {
      float total[kTokens / 2];
      for (int part = 0; part < p.parts; ++part) {
        multiply(columns_of_part(p, part));
        products.finish(d);
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
          total[i] = part == 0 ? d[i] : __fadd_rn(total[i], d[i]);
          d[i] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) d[i] = total[i];
    }
  };
  if constexpr (Fragment::kInShared) {
    each_part([&](Columns at) { products.run_shared(writer, ring, at, d); });
  } else {
    Fragment fragment(p.scale0, p.scale1, kEpilogue == Epilogue::kSwiglu, tile.group, tile.n0, p.n, p.k, writer.thread,
                      writer.group, Layout::Shape::kRows, 0);
    each_part([&](Columns at) { products.run(fragment, ring, at, p.k, d); });
  }
  unfold<kKind, kTokens>(d);
#pragma unroll
  for (int c = 0; c < (kTokens + 31) / 32; ++c) {
    if (32 * c >= tile.rows) continue;
    if (32 * c + 32 <= kTokens) {
      write_chunk<kEpilogue, Layout::kBuffer, 32>(p, tile, writer, 32 * c, d + 16 * c);
    } else {
      constexpr int kLast = kTokens % 32 == 24 ? 24 : 16;
      write_chunk<kEpilogue, Layout::kBuffer, kLast>(p, tile, writer, 32 * c, d + 16 * c);
    }
  }
  // The next tile starts with the first buffer again.
  warpgroup_barrier(writer.group);
}

// One part of one tile: the blocks of the cluster leave their sums in their rings and add up 16 tokens each.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__device__ __forceinline__ void multiply_part(const GroupedParams& p, const GroupTile& tile, int part,
                                              Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStage>& ring,
                                              const Writer& writer) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  float d[kTokens / 2] = {};
  Multiplier<kKind, kEpilogue, kTokens> products;
  const Columns at = columns_of_part(p, part);
  if constexpr (Fragment::kInShared) {
    products.run_shared(writer, ring, at, d);
  } else {
    Fragment fragment(p.scale0, p.scale1, kEpilogue == Epilogue::kSwiglu, tile.group, tile.n0, p.n, p.k, writer.thread,
                      writer.group, Layout::Shape::kRows, at.begin);
    products.run(fragment, ring, at, at.end, d);
  }
  products.finish(d);
  // The ring holds nothing any more that somebody has yet to read.
  ptx::named_barrier(5, 128 * Layout::Shape::kConsumers);
  const auto slot = [&](int j) {
    return ring.base + static_cast<uint32_t>(((writer.group * (kTokens / 8) + j) * 128 + writer.thread) * 16);
  };
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    ptx::store_16(slot(j), {__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]), __float_as_uint(d[4 * j + 2]),
                            __float_as_uint(d[4 * j + 3])});
  }
  ptx::cluster_barrier();
  for (int c = part; c < kTokens / 16 && 16 * c < tile.rows; c += p.parts) {
    float sum[8];
    for (int from = 0; from < p.parts; ++from) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 v = ptx::load_of_block(slot(2 * c + h), static_cast<uint32_t>(from));
        const float of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[4 * h + i] = from == 0 ? of[i] : __fadd_rn(sum[4 * h + i], of[i]);
      }
    }
    unfold<kKind, 16>(sum);
    GroupTile mine = tile;
    mine.rows = min(tile.rows, 16 * c + 16);
    write_chunk<kEpilogue, Layout::kBuffer, 16>(p, mine, writer, 16 * c, sum);
    warpgroup_barrier(writer.group);  // the next one may take the same buffer
  }
  ptx::cluster_barrier();  // the others' reads of this block's ring are over
}

// Fills the ring with the columns of a tile. `early`: the block's first tile, whose weights may come before the work
// that made x is done; then it waits for that.
template <WeightKind kKind, Epilogue kEpilogue, int kTokens>
__device__ __forceinline__ void copy_tile(const GroupedParams& p, const GroupTile& tile, Columns at, bool early,
                                          Ring<SharedLayout<kKind, kEpilogue, kTokens>::kStage>& ring) {
  using Fragment = FragmentOf<kKind>;
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  const int x0 = p.n_per_column_group > 0 ? tile.n0 / p.n_per_column_group * p.k : 0;
  const int w_row = tile.group * p.n + tile.n0;
  constexpr int kSteps = Layout::Shape::kSteps, kColumns = kSteps * kStepColumns;
  const auto copy_weights = [&](int k0) {
    ptx::barrier_arrive_expect(ring.full_barrier(), Layout::kStage);
    const int column = Fragment::column(k0);
    const uint32_t weights = ring.at() + kSteps * Layout::kX;
    ptx::tensor_load(weights, &p.w0, column, w_row, ring.full_barrier());
    if constexpr (kEpilogue == Epilogue::kSwiglu) {
      ptx::tensor_load(weights + Layout::kWeights / 2, &p.w1, column, w_row, ring.full_barrier());
    }
  };
  const auto copy_rows = [&](int k0) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      ptx::tensor_load(ring.at() + static_cast<uint32_t>(s * Layout::kX), &p.x, x0 + k0 + s * kStepColumns, tile.row,
                       ring.full_barrier());
    }
    ring.advance();
  };
  int k0 = at.begin;
  if (early) {
    const auto start = ring;
    for (int stage = 0; stage < ring.stages && k0 < at.end; ++stage, k0 += kColumns) {
      copy_weights(k0);
      ring.advance();
    }
    ring = start;
    ptx::wait_for_earlier();
    for (int column = at.begin; column < k0; column += kColumns) copy_rows(column);
  }
  for (; k0 < at.end; k0 += kColumns) {
    ptx::barrier_wait(ring.empty_barrier(), ring.parity);
    copy_weights(k0);
    copy_rows(k0);
  }
}

template <WeightKind kKind, Epilogue kEpilogue, int kTokens, bool kSplit>
__global__ void __launch_bounds__(BlockShape<kKind, kTokens>::kThreads, BlockShape<kKind, kTokens>::kBlocks)
    grouped_kernel(const __grid_constant__ GroupedParams p) {
  using Layout = SharedLayout<kKind, kEpilogue, kTokens>;
  using Shape = typename Layout::Shape;
  constexpr bool kCluster = kSplit && kTokens <= kClusterTokens;
  extern __shared__ uint8_t raw[];
  const uint32_t base = (ptx::shared_address(raw) + 1023u) & ~1023u;
  const uint32_t staging = base + static_cast<uint32_t>(p.stages * Layout::kStage);
  const uint32_t barriers = staging + Shape::kConsumers * Layout::kStaging;
  auto* const row_begin = reinterpret_cast<int32_t*>(raw + (barriers + 2 * kMaxStages * 8 - ptx::shared_address(raw)));
  int32_t* const tile_begin = row_begin + p.groups + 1;

  ptx::let_next_start();
  const bool early = p.row_begin == nullptr;  // what the tiles are is known
  if (!early) ptx::wait_for_earlier();
  if (!kCluster && threadIdx.x < 32) list_tiles<kTokens>(p, row_begin, tile_begin);
  if (threadIdx.x == 32) {
    for (uint32_t s = 0; s < static_cast<uint32_t>(p.stages); ++s) {
      ptx::barrier_init(barriers + 8 * s, 1);
      ptx::barrier_init(barriers + 8 * (kMaxStages + s), 4 * Shape::kConsumers);  // one arrival a consumer warp
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  Ring<Layout::kStage> ring{
      .base = base, .full = barriers, .empty = barriers + 8 * kMaxStages, .stages = p.stages, .stage = 0, .parity = 0};
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const bool copies = warpgroup == Shape::kConsumers;
  const Writer writer{.staging = staging + static_cast<uint32_t>(warpgroup * Layout::kStaging),
                      .thread = static_cast<int>(threadIdx.x) % 128,
                      .group = warpgroup};
  if constexpr (kCluster) {
    const int part = static_cast<int>(blockIdx.x) % p.parts, index = static_cast<int>(blockIdx.x) / p.parts;
    const int token_tiles = (p.rows + kTokens - 1) / kTokens, first = index % token_tiles * kTokens;
    const GroupTile tile{
        .group = 0, .n0 = index / token_tiles * Layout::kOutputs, .row = first, .rows = min(kTokens, p.rows - first)};
    if (copies) {
      if (threadIdx.x == 128 * Shape::kConsumers) {
        ring.parity = 1;  // all stages are free
        copy_tile<kKind, kEpilogue, kTokens>(p, tile, columns_of_part(p, part), true, ring);
      }
      ptx::cluster_barrier();
      ptx::cluster_barrier();
    } else {
      ptx::wait_for_earlier();
      multiply_part<kKind, kEpilogue, kTokens>(p, tile, part, ring, writer);
    }
  } else {
    const TileList<kTokens> list{.row_begin = row_begin, .tile_begin = tile_begin, .tiles = tile_begin[p.groups]};
    int group = 0;
    if (copies) {
      if constexpr (!Shape::kNarrow) ptx::fewer_registers<40>();
      if (threadIdx.x == 128 * Shape::kConsumers) {
        ring.parity = 1;
        bool first = early;
        for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
          copy_tile<kKind, kEpilogue, kTokens>(p, list.at(index, group, Layout::kOutputs), {0, p.k}, first, ring);
          first = false;
        }
      }
    } else {
      if constexpr (!Shape::kNarrow) ptx::more_registers<232>();
      ptx::wait_for_earlier();
      for (int index = static_cast<int>(blockIdx.x); index < list.tiles; index += static_cast<int>(gridDim.x)) {
        multiply_tile<kKind, kEpilogue, kTokens, kSplit>(p, list.at(index, group, Layout::kOutputs), ring, writer);
      }
    }
  }
}

}  // namespace mdi::cuda
