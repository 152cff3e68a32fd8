// What operations work on: weights, the step, and where the state of its sequences lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/cache_layout.h"

namespace mdi {

enum class WeightKind : uint8_t {
  kE4M3,  // data e4m3 [n, k], scale e8m0 [ceil(n/32), ceil(k/32)]; the input is act_quantised (W8A8)
  kE2M1,  // data two codes a byte [n, k/2], scale e8m0 [n, k/32]; the input is act_quantised (W4A8)
  kBF16,  // data bf16 [n, k]; the input is used as it is
  kF32,   // data fp32 [n, k]; the input is used as it is
};

// y[n] = sum_k x[k] * w[n, k]. `data` and `scale` are as in the checkpoint.
struct LinearWeight {
  WeightKind kind = WeightKind::kBF16;
  const void* data = nullptr;
  const e8m0* scale = nullptr;
  int64_t n = 0, k = 0;
};

// w1 and w3 [inter, dim], w2 [dim, inter].
struct ExpertWeights {
  LinearWeight w1, w2, w3;
};

// Hyper-connection parameters of one sublayer (5.3). m = (2 + hc) * hc.
struct HcWeights {
  const float* fn = nullptr;     // [m, hc * dim]
  const float* scale = nullptr;  // [3]
  const float* base = nullptr;   // [m]
};

// Rotary frequencies (6.2): inv_freq [rope_dim / 2]; the angle is fl32(fl32(position) * inv_freq[i]).
struct RopeTable {
  const float* inv_freq = nullptr;
  int32_t rope_dim = 0;
};

// Which tokens are new and where their sequences' state lies. Rows of one sequence are consecutive, in ascending
// position. A layer range that computes fewer rows (bounded replay) gets a view of those rows only.
struct StepView {
  int32_t rows = 0;                      // T
  int32_t sequences = 0;                 // S
  const int32_t* token = nullptr;        // [T]
  const int32_t* position = nullptr;     // [T] absolute, 0-based
  const int32_t* seq_of_row = nullptr;   // [T] 0..S-1
  const uint8_t* dead = nullptr;         // [T] 1: inside an image span
  const int32_t* seq_slot = nullptr;     // [S] state slot
  const int32_t* seq_start = nullptr;    // [S] position of the first new token
  const int32_t* seq_row = nullptr;      // [S] row of the first new token
  const int32_t* seq_count = nullptr;    // [S] new tokens
  const int32_t* seq_floor = nullptr;    // [S] windows see nothing older than this position (0 unless replayed)
  const int32_t* block_table = nullptr;  // [S, max_blocks] block ids
  int32_t max_blocks = 0;
};

// One KV source's rows in the paged pool: compressed row j of sequence s is row j % layout.rows of the block
// block_table[s, j / layout.rows].
struct SourceCache {
  std::byte* blocks = nullptr;
  int64_t block_bytes = 0;
  SourceLayout layout;
};

// The window rings of one layer: position p of slot s is at base + s * slot_stride + (p % window) * row bytes.
struct RingView {
  std::byte* base = nullptr;
  int64_t slot_stride = 0;
  int32_t window = 0;
  WindowRow row;
};

}  // namespace mdi
