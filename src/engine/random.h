// Random numbers from a counter: the number at (seed, sequence, position, draw) is a pure function of the four, so that
// batching, preemption and speculation cannot change what is drawn.
#pragma once

#include <cstdint>

namespace mdi {

struct RandomKey {
  uint64_t seed = 0;
  uint64_t sequence = 0;
  uint64_t position = 0;
};

// Philox (kernels/sample_math.h). `draw` tells apart the numbers that one position needs.
uint64_t random_bits(const RandomKey& key, uint32_t draw);

// In [0, 1), 53 bits.
inline double random_uniform(const RandomKey& key, uint32_t draw) {
  return static_cast<double>(random_bits(key, draw) >> 11) * 0x1p-53;
}

}  // namespace mdi
