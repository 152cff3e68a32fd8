// Stored codes to values, 16 rows at once: a lane is a row, and a vector of words holds the next four bytes of each.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "kernels/cpu/simd.h"

namespace mdi::cpu {

using Words = uint32_t __attribute__((vector_size(64)));  // 16 lanes
using Shifts = int32_t __attribute__((vector_size(64)));
constexpr int kGroup = 16;  // rows expanded together

inline Lanes as_lanes(Words w) { return reinterpret_cast<Lanes>(w); }
inline Words as_words(Lanes v) { return reinterpret_cast<Words>(v); }

inline Words load_words(const std::byte* p) {
  typedef Words Unaligned __attribute__((aligned(1), may_alias));  // with `using`, clang drops the alignment
  return *reinterpret_cast<const Unaligned*>(p);  // one load, where memcpy became two halves and a store
}

// The first `bytes` of 64, then zeros; nothing past them is read.
inline Words load_words(const std::byte* p, int64_t bytes) {
#ifdef __AVX512BW__
  return reinterpret_cast<Words>(_mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, p));
#else
  alignas(64) std::byte padded[64] = {};
  std::memcpy(padded, p, static_cast<size_t>(bytes));
  return load_words(padded);
#endif
}

// Transposes 16 x 16 words: four rounds of interleaving row i with row i + 8.
inline void transpose(Words* r) {
  for (int round = 0; round < 4; ++round) {
    Words t[kGroup];
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = __builtin_shufflevector(r[i], r[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      t[2 * i + 1] =
          __builtin_shufflevector(r[i], r[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < kGroup; ++i) r[i] = t[i];
  }
}

// 2^(byte - 127 - shift) for 16 scale bytes at once; NaN for 255, 0 for what a shift puts below the e8m0 range.
inline Lanes scale_values(Words bytes, Shifts shift) {
  const Shifts shifted = reinterpret_cast<Shifts>(bytes) - shift;
  Words bits = reinterpret_cast<Words>(shifted) << 23;
  bits = shifted == 0 ? Words{} + 0x00400000u : bits;  // 2^-127 is subnormal
  bits = shifted < 0 ? Words{} : bits;
  bits = bytes == 255u ? Words{} + 0x7FC00000u : bits;
  return as_lanes(bits);
}

// ---- formats: value(w, j) is the value of code j of each word, times the scale that it was made with --------------

// Codes in the top byte of each word. A subnormal is read as a normal number v first: its value is 2 v - 2^-6.
struct E4M3 {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  Lanes scale, twice, offset;
  explicit E4M3(Lanes s) : scale(s), twice(s + s), offset(s * -0x1p-6f) {}
  Lanes value(Words w, int j) const {
    const Words top = w << (24 - 8 * j);
    const Words magnitude = (top >> 4) & 0x07F00000u;
    const Lanes v = as_lanes(magnitude + (120u << 23));
    Words bits = as_words(v * scale);
    bits = magnitude < 0x00800000u ? as_words(fma(v, twice, offset)) : bits;
    bits = magnitude == 0x07F00000u ? Words{} + 0x7FC00000u : bits;
    return as_lanes(bits | (top & 0x80000000u));
  }
};

#ifdef __AVX512F__
// The same for words without NaN codes and 16 rows of one scale: sign and exponent look up a base and a step, scaled
// beforehand, and the value is base + mantissa * step. 0.6 of the other's time.
struct E4M3Table {
  static constexpr int kPerWord = 4;
  Lanes base[2], step[2];  // plus, minus
  explicit E4M3Table(Lanes s) {
    const Lanes bases = {0.0f,   0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 0x1p0f,
                         0x1p1f, 0x1p2f,  0x1p3f,  0x1p4f,  0x1p5f,  0x1p6f,  0x1p7f,  0x1p8f};
    const Lanes steps = {0x1p-9f, 0x1p-9f, 0x1p-8f, 0x1p-7f, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f,
                         0x1p-2f, 0x1p-1f, 0x1p0f,  0x1p1f,  0x1p2f,  0x1p3f,  0x1p4f,  0x1p5f};
    base[0] = bases * s;
    step[0] = steps * s;
    base[1] = -base[0];
    step[1] = -step[0];
  }
  static Lanes look_up(const Lanes* table, Words index) {  // by the low five bits
    return reinterpret_cast<Lanes>(_mm512_permutex2var_ps(
        reinterpret_cast<__m512>(table[0]), reinterpret_cast<__m512i>(index), reinterpret_cast<__m512>(table[1])));
  }
  Lanes value(Words w, int j) const {
    const Lanes mantissas = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    const Words code = w >> (8 * j);
    const __m512 mantissa =
        _mm512_maskz_permutexvar_ps(0xFFFF, reinterpret_cast<__m512i>(code), reinterpret_cast<__m512>(mantissas));
    return fma(reinterpret_cast<Lanes>(mantissa), look_up(step, code >> 3), look_up(base, code >> 3));
  }
};

inline bool has_nan_code(const Words* r) {
  Words carry = {};
  for (int i = 0; i < kGroup; ++i) carry |= (r[i] & 0x7F7F7F7Fu) + 0x01010101u;
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(carry), _mm512_set1_epi32(INT32_MIN + 0x00808080)) != 0;
}
#endif

struct E2M1 {
  static constexpr int kPerWord = 8;
  static constexpr bool kScaled = true;
  Lanes scale;
  explicit E2M1(Lanes s) : scale(s) {}
  Lanes value(Words w, int j) const {
#ifdef __AVX512F__
    const __m512i index = reinterpret_cast<__m512i>(w >> (4 * j));  // the permutation reads its low four bits
    return reinterpret_cast<Lanes>(_mm512_maskz_permutexvar_ps(0xFFFF, index, _mm512_loadu_ps(kE2M1Values))) * scale;
#else
    const Words code = w >> (4 * j);
    const Words magnitude = code & 7u;
    const Lanes v = as_lanes((magnitude << 22) + (126u << 23));  // of the indices 0 and 1: (value + 1) / 2
    const Lanes finite = magnitude < 2u ? v + v - 1.0f : v;
    const Words sign = magnitude == 0u ? Words{} : (code & 8u) << 28;  // code 8 is 0, as in kE2M1Values
    return as_lanes(as_words(finite) | sign) * scale;
#endif
  }
};

struct BF16 {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  explicit BF16(Lanes) {}
  static Lanes value(Words w, int j) { return as_lanes(j == 0 ? w << 16 : w & 0xFFFF0000u); }
};

struct F32 {
  static constexpr int kPerWord = 1;
  static constexpr bool kScaled = false;
  explicit F32(Lanes) {}
  static Lanes value(Words w, int) { return as_lanes(w); }
};

}  // namespace mdi::cpu
