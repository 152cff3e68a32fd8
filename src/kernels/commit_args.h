// Arguments of the operations that keep (ops.h): rows of an array, and what a step makes permanent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/operands.h"

namespace mdi {

// data[i] = data[index[i]] for i = 0 .. rows - 1, in place: keeps some rows of an array. index ascends, so index[i] >=
// i and no row is written before it is read.
struct KeepRowsArgs {
  int32_t rows = 0;
  const int32_t* index = nullptr;  // [rows]
  void* data = nullptr;            // [max(index) + 1, row_bytes]
  int64_t row_bytes = 0;           // a multiple of 4
};

// Makes the first accepted[s] new tokens of each sequence permanent in one layer's ring: the last min(accepted, window)
// of them are copied to their slots.
struct CommitRingArgs {
  const int32_t* accepted = nullptr;       // [S] 0..seq_count
  const std::byte* window_rows = nullptr;  // [T]
  RingView ring;
};

// pending[slot] = step_pending of the last accepted token, for the sequences whose new length is odd.
struct CommitPendingArgs {
  const int32_t* accepted = nullptr;
  int32_t head_dim = 0;
  const float* step_pending = nullptr;  // [T, 2, head_dim]
  float* pending = nullptr;
  int64_t pending_stride = 0;
};

// history[slot] shifts by accepted[s] and takes the accepted tokens' compressed ids, newest first.
struct CommitHistoryArgs {
  const int32_t* accepted = nullptr;
  int32_t depth = 0;                    // ngram - 1
  const int32_t* compressed = nullptr;  // [T]
  int32_t* history = nullptr;           // [slots, depth]
};

}  // namespace mdi
