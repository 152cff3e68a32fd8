// What a block of grouped_kernel looks like: warpgroups, shared memory, and the ring of stages that a thread fills by
// tensor copies and the warpgroups empty.
#pragma once

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_fragments.cuh"

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
  // from that, more blocks that wait for nobody are faster (wo_b at 64 rows: 34 us with one, 52 with two).
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
  // Stages that fit when so many blocks share a multiprocessor: what is on its way to a block that has it to itself
  // should fill it.
  static constexpr int stages(int blocks) {
    const int fitting = ((kSharedBytes + 1024) / blocks - 1024 - kFixed) / kStage;
    return fitting < kMaxStages ? fitting : kMaxStages;
  }
  static constexpr int total(int blocks) { return stages(blocks) * kStage + kFixed; }
  static_assert(stages(Shape::kBlocks) >= 2 && stages(Shape::kBlocks) * Shape::kSteps >= 3);
  static_assert(kX % 1024 == 0 && kWeights % 1024 == 0);
};

// Where K is split (parts_of_k) the parts are summed one by one and then added in order. Few tokens: a block a part,
// and the blocks of a cluster add what they find in each other's shared memory. Many: one block after another.
inline constexpr int kClusterTokens = 64;

// ---- the ring
// ---------------------------------------------------------------------------------------------------------
template <int kBytes>
struct Ring {
  uint32_t base, full, empty;  // shared addresses: stages, barriers
  int stages, stage;
  uint32_t parity;

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
  __device__ uint32_t at() const { return base + static_cast<uint32_t>(stage * kBytes); }
  __device__ uint32_t full_barrier() const { return full + 8u * static_cast<uint32_t>(stage); }
  __device__ uint32_t empty_barrier() const { return empty + 8u * static_cast<uint32_t>(stage); }
};

}  // namespace mdi::cuda
