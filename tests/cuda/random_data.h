// Random inputs of the kernel checks: gaussian and trained-like rows, weights in every storage, steps with scattered
// blocks, on both sides at once. Everything follows from a counter, so a check can be repeated alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness.h"

namespace mdi::check {

// A counter-based generator: the same seed gives the same values.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u) {}
  uint64_t next();
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  float gaussian();
};

// What rows look like. kZeroBlocks: whole blocks of 32 are zero.
enum class Rows : uint8_t { kGaussian, kPositive, kHugeChannel, kDeadRows, kZeroBlocks };
inline constexpr Rows kAllRows[] = {Rows::kGaussian, Rows::kPositive, Rows::kHugeChannel, Rows::kDeadRows,
                                    Rows::kZeroBlocks};
const char* rows_name(Rows kind);

std::vector<float> random_floats(Random& random, int64_t rows, int64_t columns, Rows kind = Rows::kGaussian,
                                 float scale = 1.0f);
std::vector<bf16> random_bf16(Random& random, int64_t rows, int64_t columns, Rows kind = Rows::kGaussian,
                              float scale = 1.0f);

// A weight on both sides. Codes are uniform over the finite ones; scales vary by a few powers of two around 1/sqrt(k),
// so that a product with unit rows is about 1.
struct TestWeight {
  Mirror<uint8_t> data;
  Mirror<e8m0> scale;
  LinearWeight host, device;
};
TestWeight random_weight(Random& random, WeightKind kind, int64_t n, int64_t k);

// ---- steps ----------------------------------------------------------------------------------------------------------
struct TestSequence {
  int32_t slot = 0, start = 0, count = 0, floor = 0;
};

// A step on both sides. Block tables are a random permutation of a pool of `pool_blocks` blocks; entries past what a
// sequence needs are -1.
struct TestStep {
  Mirror<int32_t> token, position, seq_of_row, seq_slot, seq_start, seq_row, seq_count, seq_floor, block_table;
  Mirror<uint8_t> dead;
  StepView host, device;
  int64_t pool_blocks = 0;
  int32_t slots = 0;
  std::string shape;  // "T=7 S=2"
};
// dead_share: how many of the tokens are inside images.
TestStep make_step(Random& random, const std::vector<TestSequence>& sequences, int32_t vocab, double dead_share = 0);

}  // namespace mdi::check
