#include "engine/random.h"

#include <array>

namespace mdi {

uint64_t random_bits(const RandomKey& key, uint32_t draw) {
  // Counter: position (64 bits), draw, and the sequence's low word; its high word joins the key.
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(key.position), static_cast<uint32_t>(key.position >> 32), draw,
                               static_cast<uint32_t>(key.sequence)};
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32) ^ static_cast<uint32_t>(key.sequence >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return uint64_t{c[1]} << 32 | c[0];
}

}  // namespace mdi
