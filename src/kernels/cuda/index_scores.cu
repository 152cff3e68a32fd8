// Index scores (spec 6.6): score = bf16(sum over heads of bf16(relu(bf16(iq . key)) * w)), 32 heads of 128.
//
// Work: 2 * 32 * 128 operations a query and key: 2.2 TFLOP for 4,096 queries of 65,536 keys, 3.3 ms at 672 TFLOP/s
// (reached: 3.7 ms).
// Operands are on the fp4 grid with power-of-two scales, so they are exact in bf16.
//  - Keys are the M side of wgmma and lie in registers: a thread's two rows of A are one scale block (16 bytes) of two
//    neighbouring keys, read from the cache planes directly; each is expanded once for all queries of the tile. The
//    order of K inside a product is free, so the queries are stored in shared memory in the order that makes this so.
//  - Queries are the N side: 32 columns are the heads of one query. A thread then holds eight heads of it; the rest of
//    the sum is among four lanes, in the oracle's order (lane h % 16, then halves), so scores are equal bit for bit.
//  - Three warpgroups work on keys of their own without meeting each other: while one reduces its products, the tensor
//    cores work for the other two.
// kGroup: queries of one product. 4 where queries share keys, 1 where they do not (decode steps, candidates: there the
// expansion of keys and short products cost more than the sums; 200 TFLOP/s).
#include <algorithm>
#include <cmath>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/index.h"
#include "kernels/cuda/index_keys.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

namespace {

constexpr int kHeads = 32, kKeyDim = 128;
constexpr int kWarpgroups = 3;
constexpr int kThreads = kWarpgroups * 128;
constexpr int kTileKeys = 64;  // of a warpgroup
constexpr int kQueryBytes = kHeads * kKeyDim * 2;
constexpr int kQueryWeights = kHeads * 2;  // bytes

template <int kGroup>
constexpr int kTileQueries = kGroup == 1 ? 4 : 16;
constexpr int kTable = 2112;  // candidate blocks of a query in a block of threads; a multiple of its three tiles
template <int kGroup, bool kFiltered>
constexpr int kShared = 1024 + kTileQueries<kGroup>*(kQueryBytes + kQueryWeights + (kFiltered ? kTable * 4 : 0));

struct ScoreParams {
  IndexRows rows;
  float scale;
  int32_t span;  // keys of a block, a multiple of kWarpgroups * kTileKeys
};

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ inline uint32_t rectified_pair(float low, float high) {
  uint32_t out;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// ---- keys: from cache planes to A registers -------------------------------------------------------------------------
// Where the keys of a run of queries lie. What finds a key's block is read one tile before what reads the key, so that
// neither waits for the other.
template <bool kFiltered>
struct KeySource {
  const IndexRows& r;
  const int32_t*
      table;           // the sequence's block table; filtered: in shared memory, the first row of each candidate block
  int32_t begin, end;  // keys of this block of threads; filtered: of `table`
  int shift;           // log2 of the rows of a cache block
  int block_shift;     // log2 of the size of a candidate block

  struct Place {
    int32_t at[2];  // of neighbouring keys: cache block, or row of the pool; negative: no such key
  };
  struct Raw {
    uint4 codes[2];
    uint32_t scale[2];
  };

  // Keys ascend, so a tile has keys when its first key exists.
  __device__ bool exists(int32_t key) const {
    if constexpr (!kFiltered) return key < end;
    return key < end && table[(key - begin) >> block_shift] >= 0;
  }
  __device__ Place locate(int32_t key) const {
    Place place;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      place.at[i] = -1;
      if (key + i >= end) continue;
      place.at[i] = kFiltered ? table[(key + i - begin) >> block_shift] : __ldg(table + ((key + i) >> shift));
    }
    return place;
  }
  __device__ Raw fetch(const Place& place, int32_t key, int q) const {
    const SourceLayout& layout = r.cache.layout;
    const int32_t mask = (1 << shift) - 1;
    Raw raw;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw.codes[i] = {0, 0, 0, 0};
      raw.scale[i] = 127;
      if (place.at[i] < 0) continue;
      int32_t block = place.at[i], row = (key + i) & mask;
      if constexpr (kFiltered) {
        row = block + ((key + i) & ((1 << block_shift) - 1));
        block = row >> shift;
        row &= mask;
      }
      const std::byte* at = r.cache.blocks + block * r.cache.block_bytes;
      raw.codes[i] = __ldg(reinterpret_cast<const uint4*>(at + layout.key_codes + row * (kKeyDim / 2) + q * 16));
      raw.scale[i] = __ldg(reinterpret_cast<const uint8_t*>(at + layout.key_scales + row * (kKeyDim / 32) + q));
    }
    return raw;
  }
};

// Codes become bf16 by moving their bits into a bf16 whose exponent is too small by 126, and multiplying by a power of
// two that repairs it and applies the scale. 2^24 is left out here and multiplied into the queries, so that scales up
// to 2^25 have a multiplier; larger ones give infinities. Code i of a word goes with code i + 4.
constexpr uint32_t kKeyBias = 126 - 24;
constexpr uint32_t kQueryFactor = 0x4B804B80u;  // 2^24 in both halves

template <class Raw>
__device__ inline void expand_keys(const Raw& raw, uint32_t (&a)[8][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t byte = raw.scale[i];
    const uint32_t multiplier = byte == 255 ? 0x7FC07FC0u : min(byte + kKeyBias, 255u) * 0x00800080u;
    const uint32_t words[4] = {raw.codes[i].x, raw.codes[i].y, raw.codes[i].z, raw.codes[i].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t v = words[w];
      a[2 * w][i] = multiply_pairs((v << 6 & 0x01C001C0u) | (v << 12 & 0x80008000u), multiplier);
      a[2 * w][2 + i] = multiply_pairs((v << 2 & 0x01C001C0u) | (v << 8 & 0x80008000u), multiplier);
      a[2 * w + 1][i] = multiply_pairs((v >> 2 & 0x01C001C0u) | (v << 4 & 0x80008000u), multiplier);
      a[2 * w + 1][2 + i] = multiply_pairs((v >> 6 & 0x01C001C0u) | (v & 0x80008000u), multiplier);
    }
  }
}

// ---- queries: to shared memory --------------------------------------------------------------------------------------
// Columns of B: heads of the group's queries. Position 8 half + 2 q + b of step s holds element
// 32 q + 8 (s / 2) + 2 (s % 2) + half + 4 b of the head: what expand_keys puts there.
template <int kGroup>
__device__ inline void load_queries(const ScoreParams& p, int64_t row0, int count, uint32_t tile, uint32_t weights) {
  constexpr int kSlab = kGroup * kHeads * 128;  // 64 of K
  const uint4* from = reinterpret_cast<const uint4*>(p.rows.iq + row0 * kHeads * kKeyDim);
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries<kGroup> * kHeads * 16; i += kThreads) {
    const int column = i / 16, q = i % 16 / 4, w = i % 4, query = column / kHeads;
    const uint4 v = query < count ? __ldg(from + i) : uint4{0, 0, 0, 0};
    const uint32_t x = multiply_pairs(v.x, kQueryFactor), y = multiply_pairs(v.y, kQueryFactor);
    const uint32_t z = multiply_pairs(v.z, kQueryFactor), u = multiply_pairs(v.w, kQueryFactor);
    const uint32_t pairs[4] = {__byte_perm(x, z, 0x5410), __byte_perm(x, z, 0x7632), __byte_perm(y, u, 0x5410),
                               __byte_perm(y, u, 0x7632)};
    const int row = column % (kGroup * kHeads);
    const uint32_t line = tile + static_cast<uint32_t>(query / kGroup * 2 * kSlab + w / 2 * kSlab + row * 128 + q * 4);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t chunk = static_cast<uint32_t>((w % 2 * 4 + c) ^ (row % 8));
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(line + chunk * 16), "r"(pairs[c]) : "memory");
    }
  }
  // Word (query, q, j): heads 8 j + 2 q and the next.
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries<kGroup> * 16; i += kThreads) {
    const int query = i / 16, q = i % 16 / 4, j = i % 4;
    uint32_t pair = 0;
    if (query < count) {
      const bf16* w = p.rows.w + (row0 + query) * kHeads + 8 * j + 2 * q;
      pair = pack_bf16(__fmul_rn(widen(w[0]), p.scale), __fmul_rn(widen(w[1]), p.scale));
    }
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(weights + static_cast<uint32_t>(i) * 4), "r"(pair) : "memory");
  }
  ptx::fence_async_proxy();
}

// ---- products to scores ---------------------------------------------------------------------------------------------
// sums[r][b]: over the heads 8 j + 2 q + b of a query, for key r of the thread's two. acc: the query's accumulators.
__device__ inline void sum_heads(const float* acc, uint4 w, float (&sums)[2][2]) {
  const uint32_t weight[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t u[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u[j] = multiply_pairs(rectified_pair(acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1]), weight[j]);
    }
    sums[r][0] = __fadd_rn(__fadd_rn(low_half(u[0]), low_half(u[2])), __fadd_rn(low_half(u[1]), low_half(u[3])));
    sums[r][1] = __fadd_rn(__fadd_rn(high_half(u[0]), high_half(u[2])), __fadd_rn(high_half(u[1]), high_half(u[3])));
  }
}
// mine + what the lane across gives up for it.
__device__ inline float exchange(bool upper, float low, float high, int across) {
  const float other = __shfl_xor_sync(0xFFFFFFFFu, upper ? low : high, across);
  return __fadd_rn(upper ? high : low, other);
}
// Plus zero: the oracle's sums start from it, so that they are never -0.
__device__ inline float last_sum(const float (&v)[2]) { return __fadd_rn(__fadd_rn(v[0], v[1]), 0.0f); }

// Lane q gets query q's scores of the thread's two keys, in one word.
__device__ inline uint32_t group_scores(const float (&acc)[64], uint32_t weights, int q) {
  float sums[4][2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) sum_heads(acc + 16 * i, ptx::load_16(weights + static_cast<uint32_t>(i) * 64), sums[i]);
  float score[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float v[2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float even = exchange((q & 2) != 0, sums[0][r][b], sums[2][r][b], 2);
      const float odd = exchange((q & 2) != 0, sums[1][r][b], sums[3][r][b], 2);
      v[b] = exchange((q & 1) != 0, even, odd, 1);
    }
    score[r] = last_sum(v);
  }
  return pack_bf16(score[0], score[1]);
}
// Lanes 0, 1 of four get the score of the thread's first key, 2, 3 that of the second.
__device__ inline float single_score(const float (&acc)[16], uint32_t weights, int q) {
  float sums[2][2];
  sum_heads(acc, ptx::load_16(weights), sums);
  float v[2];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    v[b] = exchange((q & 2) != 0, sums[0][b], sums[1][b], 2);
    v[b] = __fadd_rn(v[b], __shfl_xor_sync(0xFFFFFFFFu, v[b], 1));
  }
  return last_sum(v);
}

// ---- the kernel -----------------------------------------------------------------------------------------------------
// Block (x, y): keys [x span, (x + 1) span) of the y-th tile of queries.
template <int kGroup, bool kFiltered>
__global__ void __launch_bounds__(kThreads, kGroup == 1 ? 2 : 1) index_scores_kernel(const ScoreParams p) {
  extern __shared__ uint8_t shared[];
  const IndexRows& r = p.rows;
  const uint32_t tile = (ptx::shared_address(shared) + 1023u) & ~1023u;
  const uint32_t weights = tile + kTileQueries<kGroup> * kQueryBytes;
  const int64_t row0 = r.first + int64_t{blockIdx.y} * kTileQueries<kGroup>;
  const int count = static_cast<int>(min(int64_t{kTileQueries<kGroup>}, r.first + r.count - row0));
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * p.span;
  const int32_t ratio = r.cache.layout.ratio;

  bool any = false;
  for (int i = 0; i < count; ++i) {
    any |= key_position<kFiltered>(r, row0 + i, begin, (r.step.position[row0 + i] + 1) / ratio) >= 0;
  }
  if (!any) return;
  load_queries<kGroup>(p, row0, count, tile, weights);
  const int shift = __ffs(r.cache.layout.rows) - 1;
  int32_t* const places = reinterpret_cast<int32_t*>(shared + (weights - ptx::shared_address(shared)) +
                                                     kTileQueries<kGroup> * kQueryWeights);
  if constexpr (kFiltered) {
    const int entries = p.span / r.block_size;
    for (int query = 0; query < count; ++query) {
      const int64_t t = row0 + query, table = int64_t{r.step.seq_of_row[t]} * r.step.max_blocks;
      const int32_t visible = (r.step.position[t] + 1) / ratio;
      for (int i = static_cast<int>(threadIdx.x); i < entries; i += kThreads) {
        const int32_t position = key_position<true>(r, t, begin + i * r.block_size, visible);
        const int32_t row = position & ((1 << shift) - 1);
        places[query * kTable + i] =
            position < 0 ? -1 : (r.step.block_table[table + (position >> shift)] << shift) + row;
      }
    }
  }
  __syncthreads();

  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
  constexpr int32_t kRound = kWarpgroups * kTileKeys;
  const int32_t first_key = begin + static_cast<int32_t>(threadIdx.x) / 128 * kTileKeys;
  for (int q0 = 0, q1 = 0; q0 < count; q0 = q1) {  // queries that share keys
    const int32_t s = r.step.seq_of_row[row0 + q0];
    q1 = q0 + 1;
    if constexpr (!kFiltered) {
      while (q1 < count && r.step.seq_of_row[row0 + q1] == s) ++q1;
    }
    const int32_t visible = (r.step.position[row0 + q1 - 1] + 1) / ratio;  // of the last, which sees the most
    const int32_t mine = 16 * warp + 2 * g;
    const KeySource<kFiltered> keys{
        r,     kFiltered ? places + q0 * kTable : r.step.block_table + int64_t{s} * r.step.max_blocks,
        begin, kFiltered ? begin + p.span : min(begin + p.span, visible),
        shift, __ffs(r.block_size) - 1};
    if (!keys.exists(first_key)) continue;
    auto raw = keys.fetch(keys.locate(first_key + mine), first_key + mine, q);
    auto place = keys.locate(first_key + kRound + mine);
    bool more = true;
    for (int32_t key = first_key; more; key += kRound) {
      uint32_t a[8][4];
      expand_keys(raw, a);
      more = keys.exists(key + kRound);
      if (more) {
        raw = keys.fetch(place, key + kRound + mine, q);
        place = keys.locate(key + 2 * kRound + mine);
      }
      for (int group = q0 / kGroup; group <= (q1 - 1) / kGroup; ++group) {
        float acc[kGroup * 16];
        const uint64_t b = ptx::descriptor_128(tile + static_cast<uint32_t>(group * kGroup * kQueryBytes));
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          const uint64_t at = b + static_cast<uint64_t>(step / 4 * (kGroup * kHeads * 128 / 16) + step % 4 * 2);
          wgmma_bf16_rs(acc, a[step], at, step > 0 ? 1 : 0);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        const uint32_t w = weights + static_cast<uint32_t>(group * kGroup * kQueryWeights + q * 16);
        if constexpr (kGroup == 4) {
          const uint32_t pair = group_scores(acc, w, q);
          const int query = group * kGroup + q;
          if (query >= q0 && query < q1 && key + mine < visible) {
            bf16* out = r.scores + (row0 - r.first + query) * r.stride + key + mine;
            *reinterpret_cast<uint32_t*>(out) = pair;
          }
        } else {
          const float score = single_score(acc, w, q);
          const int32_t at = key + mine + q / 2;
          if (q % 2 == 0 && at < r.stride) r.scores[(row0 - r.first + group) * r.stride + at] = narrow(score);
        }
      }
    }
  }
}

template <int kGroup, bool kFiltered>
void launch(CudaContext& context, const IndexRows& rows, float scale) {
  const auto kernel = index_scores_kernel<kGroup, kFiltered>;
  constexpr int kBytes = kShared<kGroup, kFiltered>;
  static const bool allowed = [&] {
    MDI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  static_cast<void>(allowed);
  // About two waves of blocks, none shorter than four rounds of its warpgroups.
  const int64_t tiles = (rows.count + kTileQueries<kGroup> - 1) / kTileQueries<kGroup>;
  const int64_t round = kWarpgroups * kTileKeys;
  const int64_t waves = kGroup == 1 ? 4 : 2;
  const int64_t rounds = (rows.stride + round - 1) / round;
  const int64_t splits = std::clamp<int64_t>(waves * context.multiprocessors / tiles, 1, (rounds + 3) / 4);
  int64_t span = (rounds + splits - 1) / splits * round;
  if (kFiltered) span = std::min<int64_t>(span, int64_t{kTable} * rows.block_size);
  const dim3 grid(static_cast<unsigned>((rows.stride + span - 1) / span), static_cast<unsigned>(tiles));
  kernel<<<grid, kThreads, kBytes, context.stream>>>({rows, scale, static_cast<int32_t>(span)});
}

bool fits_tiles(const IndexRows& r) {
  const SourceLayout& layout = r.cache.layout;
  // A candidate block must not straddle two cache blocks or two tiles.
  if (r.candidates != nullptr && (layout.rows % r.block_size != 0 || kTileKeys % r.block_size != 0)) return false;
  return r.heads == kHeads && (layout.rows & (layout.rows - 1)) == 0 && r.key_dim == kKeyDim &&
         layout.key_codes % 16 == 0 && r.cache.block_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(r.cache.blocks) % 16 == 0;
}

}  // namespace

void index_scores(CudaContext& context, const IndexRows& rows) {
  if (rows.count == 0) return;
  // 2^-6 at the released size, and a power of two or not elsewhere (6.6).
  const auto scale = static_cast<float>(std::pow(static_cast<double>(rows.key_dim), -0.5) *
                                        std::pow(static_cast<double>(rows.heads), -0.5));
  const bool filtered = rows.candidates != nullptr;
  const std::string shape = "[" + std::to_string(rows.count) + ", " + std::to_string(rows.stride) + "]";
  if (!fits_tiles(rows)) {
    plain_index_scores(context, rows, scale);
    return;
  }
  if (filtered) {
    launch<1, true>(context, rows, scale);
  } else if (rows.step.rows <= 2 * rows.step.sequences) {
    launch<1, false>(context, rows, scale);
  } else {
    launch<4, false>(context, rows, scale);
  }
  MDI_CUDA_LAUNCHED(context, "index scores " + shape);
}

}  // namespace mdi::cuda
