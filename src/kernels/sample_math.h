// The arithmetic by which a token is chosen from a row of logits, for the host and for devices, bit for bit the same.
//
// A token's weight is its softmax numerator as a whole number: weight(i) = floor(2^(exponent * (l_i - max)) * 2^shift).
// Whole numbers add up to the same sum in every order, so no order has to be agreed on. The largest logit has the
// weight 2^shift; shift is such that a row's sum stays below 2^62. What is less likely than 2^-shift times the most
// likely token has the weight 0 and is never drawn.
//
// Tokens are ordered by rank: larger logits first, the lower id among equals; NaN behind everything. The filters keep
// the ranks from a cut on: top-k the k first; of these top-p the fewest first whose weight reaches the share; of these
// min-p those that weigh at least min_p times the most likely one. The token is the first, in ascending id, at which
// the sum of the kept weights exceeds floor(bits / 2^64 * total), with random_bits(seed, sequence, position, 0).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define MDI_HOST_DEVICE __host__ __device__
#else
#define MDI_HOST_DEVICE
#endif

namespace mdi::sampling {

inline constexpr int kIdBits = 24;
inline constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;
inline constexpr int kRankBits = 32 + kIdBits;

MDI_HOST_DEVICE inline uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

// Ascends with the logit; 0 for NaN, and the same for both zeros.
MDI_HOST_DEVICE inline uint32_t sort_key(float logit) {
  if (logit != logit) return 0;
  const uint32_t bits = logit == 0.0f ? 0u : bits_of(logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Of kRankBits bits; no two tokens have the same.
MDI_HOST_DEVICE inline uint64_t rank_of(float logit, int64_t id) {
  return uint64_t{sort_key(logit)} << kIdBits | (kIdMask - static_cast<uint64_t>(id));
}
MDI_HOST_DEVICE inline int32_t id_of(uint64_t rank) { return static_cast<int32_t>(kIdMask - (rank & kIdMask)); }

MDI_HOST_DEVICE inline bool is_finite(float logit) { return (bits_of(logit) & 0x7F800000u) != 0x7F800000u; }

inline int shift_of(int64_t vocab) { return 62 - static_cast<int>(std::bit_width(static_cast<uint64_t>(vocab))); }

// log2(e) / temperature, or 0 for greedy.
inline double exponent_of(float temperature) {
  if (temperature == 0.0f) return 0;
  const double t = static_cast<double>(temperature);
  return 1.4426950408889634 / (t > 1e-5 ? t : 1e-5);
}

// 2^f for |f| <= 1/2, relative error below 1e-13.
MDI_HOST_DEVICE inline double exp2_fraction(double f) {
  double p = 4.4455382718708116e-10;  // ln(2)^k / k! for k = 11 .. 0
  p = ::fma(p, f, 7.054911620801123e-09);
  p = ::fma(p, f, 1.01780860092397e-07);
  p = ::fma(p, f, 1.321548679014431e-06);
  p = ::fma(p, f, 1.5252733804059841e-05);
  p = ::fma(p, f, 0.0001540353039338161);
  p = ::fma(p, f, 0.0013333558146428443);
  p = ::fma(p, f, 0.009618129107628477);
  p = ::fma(p, f, 0.05550410866482158);
  p = ::fma(p, f, 0.24022650695910072);
  p = ::fma(p, f, 0.6931471805599453);
  return ::fma(p, f, 1.0);
}

// A product that no compiler joins with an addition.
MDI_HOST_DEVICE inline double product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// `largest` is the row's largest logit, and finite. Without branches, for the host's vectors.
MDI_HOST_DEVICE inline uint64_t weight_of(float logit, float largest, double exponent, int shift) {
  const double t = product(static_cast<double>(logit) - static_cast<double>(largest), exponent);
  const bool any = t > -1.0 - shift;  // not where t is NaN
  const double u = any ? t : 0.0;
  const double n = ::rint(u);
  const auto scale_bits = static_cast<uint64_t>(static_cast<int64_t>(n) + shift + 1023) << 52;
  double scale;
  memcpy(&scale, &scale_bits, sizeof scale);
  const auto weight = static_cast<uint64_t>(product(exp2_fraction(u - n), scale));
  return any ? weight : 0;
}

// The weight that the most likely tokens must reach together.
MDI_HOST_DEVICE inline uint64_t share_of(uint64_t total, float top_p) {
  const auto share = static_cast<uint64_t>(::ceil(static_cast<double>(top_p) * static_cast<double>(total)));
  return share < 1 ? 1 : share > total ? total : share;
}

// The weight that a kept token has at least.
MDI_HOST_DEVICE inline uint64_t least_weight(float min_p, int shift) {
  const auto scale = static_cast<double>(uint64_t{1} << shift);
  const auto least = static_cast<uint64_t>(::ceil(static_cast<double>(min_p) * scale));
  return least < 1 ? 1 : least;
}

// floor(bits * total / 2^64).
MDI_HOST_DEVICE inline uint64_t scaled(uint64_t bits, uint64_t total) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(bits, total);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(bits) * total >> 64);
#endif
}

// Philox 4x32 with 10 rounds (Salmon et al., 2011). `draw` tells apart the numbers that one position needs.
MDI_HOST_DEVICE inline uint64_t random_bits(uint64_t seed, uint64_t sequence, uint64_t position, uint32_t draw) {
  // Counter: position (64 bits), draw, and the sequence's low word; its high word joins the key.
  auto c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = draw,
       c3 = static_cast<uint32_t>(sequence);
  auto k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(sequence >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return uint64_t{c1} << 32 | c0;
}

}  // namespace mdi::sampling
