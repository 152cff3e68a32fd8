// What a synthetic checkpoint's tensors hold: random values under which a forward pass behaves like one of a trained
// model (the residual stream keeps its size, a sublayer adds 5 to 15% of it, scores differ, experts are chosen
// unequally).
//
// Every value is a function of (seed, tensor name, position) alone, so that the order of writing and the number of
// threads do not matter.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"

namespace mdi {

struct SynthTraits {
  uint64_t seed = 0;
  // With what random tensors lack and trained ones have: input channels 1,000 times larger or smaller than the others
  // (the norm before compensates), rows and 32x32 blocks of zeros, block scales far apart, favoured and avoided
  // experts.
  bool trained = false;
};

// 32 columns in which some are special; the weights of `small` columns are divided by 1,024, those of `large`
// multiplied.
struct SpecialBlock {
  int64_t block = 0;
  uint32_t small = 0, large = 0;
};

// How one tensor is filled: everything about it that does not depend on the row.
struct TensorFill {
  enum class Kind : uint8_t { kReal, kE4M3, kE2M1, kScales };
  Kind kind = Kind::kReal;
  DType dtype = DType::kF32;
  int64_t rows = 1, row_elements = 0, row_bytes = 0;
  uint64_t key = 0;            // of the tensor; a weight and its scale share theirs
  float mean = 0, spread = 0;  // kReal: mean and standard deviation
  float row_spread = 0;        // kReal: rows differ by exp(row_spread * normal)
  int exponent = 0;            // kScales: the least common exponent ...
  double next_exponent = 0;    // ... and the share of blocks that have one more
  bool trained = false;
  bool row_scales = false;   // a scale for each row (fp4, engram tables) instead of each 32 rows
  bool dead_rows = false;    // some rows are all zero
  bool zero_blocks = false;  // some 32x32 blocks are all zero
  bool routing = false;      // kReal: router biases that favour some experts
  std::vector<SpecialBlock> special;
};

// `spec` is one of inventory(config).
TensorFill plan_fill(const ModelConfig& config, const TensorSpec& spec, const SynthTraits& traits);

// Writes rows [first, first + count) of the tensor to `out`, which holds count * row_bytes bytes.
void fill_rows(const TensorFill& fill, int64_t first, int64_t count, uint8_t* out);

// A 64-bit value for (key, index); the one source of randomness here.
uint64_t random_at(uint64_t key, uint64_t index);

}  // namespace mdi
