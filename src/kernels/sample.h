// Choosing tokens from rows of logits, and reading tokens that the device has chosen: contracts of two operations of
// ops.h. The arithmetic is that of sample_math.h, in which every backend gives the same token.
#pragma once

#include <cstdint>

namespace mdi {

// What one row's token depends on besides its logits.
struct SampleRow {
  uint64_t seed = 0, sequence = 0, position = 0;  // of the random number (random_bits, draw 0)
  double exponent = 0;                            // log2(e) / temperature; 0: greedy
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;   // 0: no limit
  int32_t wanted = 1;  // 0: nothing is chosen from this row
};

inline constexpr int32_t kNotFinite = -1;  // chosen instead of a token: the row's largest value is no finite number
inline constexpr int32_t kNotWanted = -2;

// chosen[i]: the token of logits[i], kNotFinite or kNotWanted.
struct SampleArgs {
  int32_t rows = 0;
  int64_t vocab = 0;               // at most 2^24
  const float* logits = nullptr;   // [rows, vocab]
  const SampleRow* row = nullptr;  // [rows]
  int32_t* chosen = nullptr;       // out [rows]
};

// token[place[i]] = max(chosen[source[i]], 0) for i = 0 .. count - 1: tokens of a step that the step before has chosen.
struct PlaceTokensArgs {
  int32_t count = 0;
  const int32_t* place = nullptr;   // [count]
  const int32_t* source = nullptr;  // [count]
  const int32_t* chosen = nullptr;
  int32_t* token = nullptr;
};

}  // namespace mdi
