// The warpgroup that reads and expands a query's keys, 64 at a time, into stages of bf16 [64 keys, 512] in shared
// memory (attention_wgmma.cu).
#pragma once

#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/attention_layout.cuh"

namespace mdi::cuda::attention_block {

struct Producer {
  uint32_t base;
  uint8_t* shared;  // the same address as a pointer
  Barriers barriers;
  StageCounter at;

  __device__ void list_keys(const AttentionParams& p, int64_t t) const {
    const int thread = static_cast<int>(threadIdx.x) - (kThreads - kProducers);
    auto* const rows = reinterpret_cast<const uint8_t**>(shared + kRows);
    auto* const offsets = reinterpret_cast<int32_t*>(shared + kOffsets);
    auto* const masks = reinterpret_cast<uint32_t*>(shared + kMasks);
    const QueryKeys query = query_keys(p, t);
    const int padded = (p.slots + kKeys - 1) / kKeys * kKeys;
    for (int slot = thread; slot < padded; slot += kProducers) {
      const KeyRow row = key_at(p, query, t, slot);
      rows[slot] = row.codes;
      offsets[slot] = row.scale_offset;
      const uint32_t mask = __ballot_sync(0xFFFFFFFFu, row.codes != nullptr);
      if (slot % 32 == 0) masks[slot / 32] = mask;
    }
  }

  // Sixteen rows a warp, a whole row at once: lane l expands channels 8 l .. 8 l + 7 of both halves of the row, so that
  // global reads are contiguous and shared stores free of conflicts. Rows first .. first + kRows of the warp's: loads,
  // all of them before the stage is waited for, then stores.
  template <bool kWindow, int kRowsAtOnce>
  __device__ void fill_rows(int block, int first) const {
    const int warp = static_cast<int>(threadIdx.x) / 32 - (kThreads - kProducers) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row0 = warp * kRowsPerWarp + first;
    const auto* const rows = reinterpret_cast<const uint8_t* const*>(shared + kRows) + block * kKeys + row0;
    const auto* const offsets = reinterpret_cast<const int32_t*>(shared + kOffsets) + block * kKeys + row0;
    constexpr int kLanesOfScale = kWindow ? 4 : 2;
    uint2 codes[kRowsAtOnce][kWindow ? 2 : 1];
    uint32_t scales[kRowsAtOnce][2];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const uint8_t* const row = rows[i];
      const uint8_t* const row_scales = row + offsets[i];
      codes[i][0] = codes[i][kWindow ? 1 : 0] = {0, 0};
      scales[i][0] = scales[i][1] = 0;
      if (row == nullptr) continue;
      if constexpr (kWindow) {
        codes[i][0] = __ldg(reinterpret_cast<const uint2*>(row) + lane);
        codes[i][1] = __ldg(reinterpret_cast<const uint2*>(row) + 32 + lane);
      } else {
        codes[i][0].x = __ldg(reinterpret_cast<const uint32_t*>(row) + lane);
        codes[i][0].y = __ldg(reinterpret_cast<const uint32_t*>(row) + 32 + lane);
      }
      scales[i][0] = __ldg(row_scales + lane / kLanesOfScale);
      scales[i][1] = __ldg(row_scales + 32 / kLanesOfScale + lane / kLanesOfScale);
    }
    if (first == 0) ptx::barrier_wait(barriers.empty(at.stage), at.parity);
    const uint32_t to = at.at(base) + static_cast<uint32_t>(lane / 8) * kPanel + static_cast<uint32_t>(row0) * 128u;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const uint32_t chunk = to + static_cast<uint32_t>(i * 128 + (((lane % 8) ^ (i % 8)) * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 values;
        if constexpr (kWindow) {
          values = expand_e4m3(codes[i][half], e8m0_value(scales[i][half]));
        } else {
          const float scale = e4m3_values(scales[i][half]).x;
          values = expand_e2m1(half == 0 ? codes[i][0].x : codes[i][0].y, pack_bf16(scale, scale));
        }
        ptx::store_16(chunk + static_cast<uint32_t>(half) * 4u * kPanel, values);
      }
    }
  }

  __device__ void fill(int block, bool window, bool last) {
    if (window) {
      for (int first = 0; first < kRowsPerWarp; first += 8) fill_rows<true, 8>(block, first);
    } else {
      fill_rows<false, kRowsPerWarp>(block, 0);
    }
    if (threadIdx.x == kThreads - kProducers) {
      const auto* const masks = reinterpret_cast<const uint32_t*>(shared + kMasks);
      *reinterpret_cast<BlockInfo*>(shared + kInfo + static_cast<uint32_t>(at.stage) * sizeof(BlockInfo)) = {
          {masks[2 * block], masks[2 * block + 1]}, last ? 1u : 0u, 0u};
    }
    ptx::fence_async_proxy();
    warp_arrive(barriers.full(at.stage));
    at.advance();
  }

  __device__ void run(const WgmmaParams& w) {
    at.parity = 1;  // both stages are free
    const auto* const masks = reinterpret_cast<const uint32_t*>(shared + kMasks);
    const int blocks = (w.p.slots + kKeys - 1) / kKeys;
    const int window_blocks = w.p.args.whole_block ? blocks : w.p.args.ring.window / kKeys;
    for (int unit = static_cast<int>(blockIdx.x); unit < w.units; unit += static_cast<int>(gridDim.x)) {
      ptx::named_barrier(kTableBarrier, kProducers);  // nobody reads the table of the query before
      list_keys(w.p, unit / w.groups);
      ptx::named_barrier(kTableBarrier, kProducers);
      int final_block = 0;
      for (int b = 0; b < blocks; ++b) {
        if ((masks[2 * b] | masks[2 * b + 1]) != 0) final_block = b;
      }
      for (int b = 0; b <= final_block; ++b) {
        if (b < final_block && (masks[2 * b] | masks[2 * b + 1]) == 0) continue;
        fill(b, b < window_blocks, b == final_block);
      }
    }
  }
};

}  // namespace mdi::cuda::attention_block
