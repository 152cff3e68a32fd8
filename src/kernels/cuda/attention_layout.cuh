// What a block of attention_wgmma.cu looks like: its tiles, shared memory and barriers, and the ring of two stages of
// keys that one warpgroup fills and two empty.
#pragma once

#include <cuda.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.h"

namespace mdi::cuda::attention_block {

inline constexpr int kHeads = 64, kDim = 512, kKeys = 64, kStages = 2, kMaxSlots = 1024;
inline constexpr int kThreads = 384, kProducers = 128, kProducerWarps = kProducers / 32,
                     kRowsPerWarp = kKeys / kProducerWarps;
inline constexpr uint32_t kPanel = kKeys * 128;  // 64 rows of 64 bf16, swizzled
inline constexpr uint32_t kTile = kDim / 64 * kPanel;
inline constexpr int kQueryBarrier = 1, kTableBarrier = 2;  // named barriers

// Shared memory, in bytes behind a base that is a multiple of 1024.
inline constexpr uint32_t kQ = 0;
inline constexpr uint32_t kStage0 = kTile;
// P as registers: [4 steps of 16 keys][128 threads] 16 bytes.
inline constexpr uint32_t kWeights = kStage0 + kStages * kTile;
inline constexpr uint32_t kFactors = kWeights + 4 * 128 * 16;  // [128 threads] two floats: decay, in the end 1 / total
inline constexpr uint32_t kRows = kFactors + 128 * 8;          // [kMaxSlots] codes
inline constexpr uint32_t kOffsets = kRows + kMaxSlots * 8;    // [kMaxSlots] scale offsets
inline constexpr uint32_t kMasks = kOffsets + kMaxSlots * 4;   // [kMaxSlots / 32] which keys are there
inline constexpr uint32_t kInfo = kMasks + kMaxSlots / 8;      // [kStages] BlockInfo
inline constexpr uint32_t kBarriers = kInfo + kStages * 16;
inline constexpr uint32_t kTotal = kBarriers + 8 * 8 + 1024;

struct alignas(16) BlockInfo {
  uint32_t mask[2];  // keys of the block
  uint32_t last;     // of its query
  uint32_t unused;
};

struct WgmmaParams {
  CUtensorMap q;
  AttentionParams p;
  int32_t units;   // queries x groups of heads
  int32_t groups;  // of heads
};

// Shared addresses of the barriers.
struct Barriers {
  uint32_t base;
  __device__ uint32_t full(int stage) const { return base + 8u * static_cast<uint32_t>(stage); }
  __device__ uint32_t empty(int stage) const { return base + 8u * static_cast<uint32_t>(kStages + stage); }
  __device__ uint32_t query() const { return base + 32; }
  __device__ uint32_t weights_full() const { return base + 40; }
  __device__ uint32_t weights_empty() const { return base + 48; }
};

struct StageCounter {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    parity ^= static_cast<uint32_t>(stage);
    stage ^= 1;
  }
  __device__ uint32_t at(uint32_t base) const { return base + kStage0 + static_cast<uint32_t>(stage) * kTile; }
};
static_assert(kStages == 2);

__device__ inline void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier);
}

}  // namespace mdi::cuda::attention_block
