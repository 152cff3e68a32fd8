#include "checkpoint/engram_multipliers.h"

#include <array>
#include <limits>
#include <string>

#include "core/error.h"

namespace mdi {

namespace {

__extension__ using uint128 = unsigned __int128;

// Four 64-bit words from a 32-bit seed.
std::array<uint64_t, 4> seed_words(uint32_t seed) {
  uint32_t a = 0x43B0D7E5u;
  const auto hashmix = [&a](uint32_t v) {
    v ^= a;
    a *= 0x931E8875u;
    v *= a;
    return v ^ (v >> 16);
  };
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < 4; ++i) pool[i] = hashmix(i == 0 ? seed : 0u);
  for (size_t src = 0; src < 4; ++src) {
    for (size_t dst = 0; dst < 4; ++dst) {
      if (dst == src) continue;
      const uint32_t r = 0xCA01F9DDu * pool[dst] - 0x4973F715u * hashmix(pool[src]);
      pool[dst] = r ^ (r >> 16);
    }
  }
  std::array<uint64_t, 4> words{};
  uint32_t b = 0x8B51F9DDu;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t v = pool[i % 4] ^ b;
    b *= 0x58F38DEDu;
    v *= b;
    v ^= v >> 16;
    words[i / 2] |= uint64_t{v} << (32 * (i % 2));
  }
  return words;
}

// PCG64, XSL-RR output.
class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const auto w = seed_words(seed);
    const uint128 start = (uint128{w[0]} << 64) | w[1];
    increment_ = (((uint128{w[2]} << 64) | w[3]) << 1) | 1u;
    step();
    state_ += start;
    step();
  }

  uint64_t next() {
    step();
    const auto high = static_cast<uint64_t>(state_ >> 64);
    const uint64_t mixed = high ^ static_cast<uint64_t>(state_);
    const auto turn = static_cast<unsigned>(high >> 58);
    return (mixed >> turn) | (mixed << ((64 - turn) & 63u));
  }

  // Uniform in [0, bound): Lemire's method on 64 bits, which is the reference's path for bounds over 2^32.
  uint64_t below(uint64_t bound) {
    uint128 m = uint128{next()} * bound;
    if (static_cast<uint64_t>(m) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(m) < threshold) m = uint128{next()} * bound;
    }
    return static_cast<uint64_t>(m >> 64);
  }

 private:
  void step() {
    constexpr uint128 kMultiplier = (uint128{0x2360ED051FC65DA4u} << 64) | 0x4385DF649FCCF645u;
    state_ = state_ * kMultiplier + increment_;
  }

  uint128 state_ = 0;
  uint128 increment_ = 0;
};

}  // namespace

std::vector<int64_t> engram_layer_multipliers(int layer, int64_t compressed_vocab_size, int count) {
  if (compressed_vocab_size < 1 || compressed_vocab_size > (int64_t{1} << 29)) {
    throw Error("engram_compressed_vocab_size",
                "expected 1 to 536870912, found " + std::to_string(compressed_vocab_size));
  }
  const uint64_t seed = 10007u * static_cast<uint64_t>(layer);
  if (layer < 0 || seed > std::numeric_limits<uint32_t>::max()) {
    throw Error("engram_layer_ids", "expected a layer in 0..429196, found " + std::to_string(layer));
  }
  const auto bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / compressed_vocab_size / 2);
  Pcg64 random(static_cast<uint32_t>(seed));
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (auto& m : out) m = static_cast<int64_t>(2 * random.below(bound) + 1);
  return out;
}

std::vector<std::vector<int64_t>> engram_multipliers(const ModelConfig& config) {
  std::vector<std::vector<int64_t>> out;
  out.reserve(config.engram_layer_ids.size());
  for (const int layer : config.engram_layer_ids) {
    out.push_back(engram_layer_multipliers(layer, config.engram_compressed_vocab_size, config.engram_max_ngram_size));
  }
  return out;
}

}  // namespace mdi
