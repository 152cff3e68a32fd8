// Which cache row each key of a query is (spec 6.7), and its expansion to bf16, which is exact. Both attention kernels
// read keys through this.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/formats.cuh"

namespace mdi::cuda {

// What key_at needs to know of a query's sequence.
struct QueryKeys {
  int32_t sequence, start, first_row, oldest, visible_from, new_rows;
  const std::byte* ring;
};

__device__ inline QueryKeys query_keys(const AttentionParams& p, int64_t t) {
  const StepView& step = p.step;
  const SparseAttentionArgs& a = p.args;
  QueryKeys q;
  q.sequence = step.seq_of_row[t];
  q.start = step.seq_start[q.sequence];
  q.first_row = step.seq_row[q.sequence];
  q.oldest = (a.whole_block ? q.start : step.position[t] + 1) - a.ring.window;
  q.visible_from = max(step.seq_floor[q.sequence], 0);
  q.new_rows = a.whole_block ? step.seq_count[q.sequence] : 0;
  q.ring = a.ring.base + step.seq_slot[q.sequence] * a.ring.slot_stride;
  return q;
}

// codes: null where there is no key. Scales lie scale_offset bytes behind the codes.
struct KeyRow {
  const uint8_t* codes;
  int32_t scale_offset;
};

// Key `slot` of query t: the window's rows, then the block's own rows or the selected ones.
__device__ inline KeyRow key_at(const AttentionParams& p, const QueryKeys& q, int64_t t, int32_t slot) {
  const SparseAttentionArgs& a = p.args;
  if (slot >= p.slots) return {nullptr, 0};
  if (slot < a.ring.window || a.whole_block) {
    const int32_t position = slot < a.ring.window ? q.oldest + slot : q.start + (slot - a.ring.window);
    const bool there = slot < a.ring.window ? position >= q.visible_from : slot - a.ring.window < q.new_rows;
    if (!there) return {nullptr, 0};
    const std::byte* row = position >= q.start
                               ? a.window_rows + int64_t{q.first_row + (position - q.start)} * p.window_bytes
                               : q.ring + int64_t{position % a.ring.window} * p.window_bytes;
    return {reinterpret_cast<const uint8_t*>(row), a.head_dim};
  }
  const int32_t position = a.selected[t * a.topk + (slot - a.ring.window)];
  if (position < 0) return {nullptr, 0};
  const SourceLayout& layout = a.cache.layout;
  const int64_t id = p.step.block_table[int64_t{q.sequence} * p.step.max_blocks + position / layout.rows];
  const int64_t row = position % layout.rows;
  const int64_t codes = layout.kv_codes + row * (a.head_dim / 2), scales = layout.kv_scales + row * (a.head_dim / 16);
  return {reinterpret_cast<const uint8_t*>(a.cache.blocks + id * a.cache.block_bytes + codes),
          static_cast<int32_t>(scales - codes)};
}

// Eight e4m3 codes times a scale, as bf16.
__device__ inline uint4 expand_e4m3(uint2 codes, float scale) {
  const auto pair = [&](uint32_t two) {
    const float2 v = e4m3_values(two);
    return pack_bf16(v.x * scale, v.y * scale);
  };
  return {pair(codes.x & 0xFFFFu), pair(codes.x >> 16), pair(codes.y & 0xFFFFu), pair(codes.y >> 16)};
}

// Eight e2m1 codes times a scale (twice in a word), as bf16. The two bytes of every value are looked up by byte
// permutations, whose selectors are the codes; a product has six significant bits.
__device__ inline uint4 expand_e2m1(uint32_t codes, uint32_t scale) {
  const uint32_t even_signs = (codes & 0x08080808u) << 4, odd_signs = codes & 0x80808080u;
  const uint32_t magnitudes = codes & 0x77777777u;
  const auto scaled = [&](uint32_t low, uint32_t high, uint32_t selector) {
    const uint32_t bits = __byte_perm(low, high, selector);
    __nv_bfloat162 v, s;
    memcpy(&v, &bits, sizeof v);
    memcpy(&s, &scale, sizeof s);
    v = __hmul2(v, s);
    uint32_t out;
    memcpy(&out, &v, sizeof out);
    return out;
  };
  const uint32_t low0 = __byte_perm(0xC0800000u, 0xC0804000u, magnitudes);
  const uint32_t high0 = __byte_perm(0x3F3F3F00u, 0x40404040u, magnitudes) | __byte_perm(even_signs, odd_signs, 0x5140);
  const uint32_t low1 = __byte_perm(0xC0800000u, 0xC0804000u, magnitudes >> 16);
  const uint32_t high1 =
      __byte_perm(0x3F3F3F00u, 0x40404040u, magnitudes >> 16) | __byte_perm(even_signs, odd_signs, 0x7362);
  return {scaled(low0, high0, 0x5140), scaled(low0, high0, 0x7362), scaled(low1, high1, 0x5140),
          scaled(low1, high1, 0x7362)};
}

}  // namespace mdi::cuda
