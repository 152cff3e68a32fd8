#include "engine/random.h"

#include "kernels/sample_math.h"

namespace mdi {

uint64_t random_bits(const RandomKey& key, uint32_t draw) {
  return sampling::random_bits(key.seed, key.sequence, key.position, draw);
}

}  // namespace mdi
