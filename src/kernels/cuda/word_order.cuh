// The order of K in which kE2M1 products take their rows: within each 64 columns, thread q of a group of four owns the
// 16 codes 16 q and on, two words that it expands by shifts alone.
//
// A word of eight codes gives four pairs, codes o and o + 4 (the two halves of a register after one shift). Pair o of
// word h goes to product 2 h + o / 2 of the four that a step of 64 columns has, there to columns 2 q and 2 q + 1, or 8
// further for odd o. So column 16 q + 8 h + o + 4 i lies at 32 h + 8 o + 2 q + i.
#pragma once

#include "kernels/cuda/formats.cuh"

namespace mdi::cuda {

// Eight neighbouring columns as their four pairs.
__device__ inline uint4 word_pairs(uint4 v) {
  return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
          __byte_perm(v.y, v.w, 0x7632)};
}

// Eight lanes hold the 64 columns of a row, eight each (lane 2 q + h). After the exchange a lane holds 16 neighbouring
// bytes of the new order, at 64 h + 16 q bytes of 128: pair q of the words h of all four q.
__device__ inline uint4 exchange_words(uint4 pairs, int lane) {
  const int q = lane / 2 % 4;
  const auto swap = [](uint32_t mine, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, mine, mask); };
  // Pairs 0 and 1 of q and q + 2, or pairs 2 and 3.
  const bool upper = q >= 2;
  const uint32_t far0 = swap(upper ? pairs.x : pairs.z, 4), far1 = swap(upper ? pairs.y : pairs.w, 4);
  const uint32_t near0 = upper ? pairs.z : pairs.x, near1 = upper ? pairs.w : pairs.y;
  const uint32_t low0 = upper ? far0 : near0, low1 = upper ? far1 : near1;    // of the lower q
  const uint32_t high0 = upper ? near0 : far0, high1 = upper ? near1 : far1;  // of that q + 2
  // One of the two pairs, of both neighbours.
  const bool odd = q % 2 == 1;
  const uint32_t other_low = swap(odd ? low0 : low1, 2), other_high = swap(odd ? high0 : high1, 2);
  const uint32_t my_low = odd ? low1 : low0, my_high = odd ? high1 : high0;
  return odd ? uint4{other_low, my_low, other_high, my_high} : uint4{my_low, other_low, my_high, other_high};
}
// Where it goes, in units of 16 bytes of the row: `chunk` is the lane's eight columns.
__device__ inline int64_t exchanged_chunk(int64_t chunk) { return chunk / 8 * 8 + chunk % 2 * 4 + chunk / 2 % 4; }

}  // namespace mdi::cuda
