// Choosing tokens (kernels/sample.h). A cluster of blocks takes a row; each block reads its share of it again and
// again, which the caches make cheap, and the blocks add up whole numbers, so every order gives the same sums.
#include <cooperative_groups.h>

#include "kernels/cuda/context.h"
#include "kernels/cuda/stages.h"
#include "kernels/sample.h"
#include "kernels/sample_math.h"

namespace mdi::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kCluster = 8;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 8;  // a search fixes three bits of a rank at a time
constexpr int kDigit = 3;

struct Shared {
  uint64_t part[kWarps][2 * kBins];
  uint64_t block[2][2 * kBins];  // of this block, by turns: read by the whole cluster
  uint64_t all[2 * kBins];
};

// One row, as one of its cluster's blocks sees it.
struct Row {
  Shared& shared;
  const float* logits;
  int64_t begin, end;  // this warp's tokens
  int lane, warp;
  unsigned rank;  // of the block in its cluster
  int turn = 0;

  template <class Body>
  __device__ void each(Body body) const {
    for (int64_t i = begin + lane; i < end; i += 32) body(logits[i], i);
  }

  // Adds up (or takes the largest of) shared.part over all warps and blocks, for each of `count` values.
  template <class Join>
  __device__ void join(int count, Join with) {
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < count) {
      uint64_t v = shared.part[0][i];
      for (int w = 1; w < kWarps; ++w) v = with(v, shared.part[w][i]);
      shared.block[turn][i] = v;
    }
    cg::this_cluster().sync();
    if (i < count) {
      uint64_t v = 0;
      for (unsigned r = 0; r < kCluster; ++r) {
        v = with(v, *cg::this_cluster().map_shared_rank(&shared.block[turn][i], r));
      }
      shared.all[i] = v;
    }
    turn ^= 1;
    __syncthreads();
  }
};

__device__ inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
__device__ inline uint64_t plus(uint64_t a, uint64_t b) { return a + b; }

__device__ uint64_t largest_rank(Row& row) {
  uint64_t best = 0;
  row.each([&](float l, int64_t i) { best = larger(best, sampling::rank_of(l, i)); });
  for (int d = 16; d > 0; d /= 2) best = larger(best, __shfl_xor_sync(~0u, best, d));
  if (row.lane == 0) row.shared.part[row.warp][0] = best;
  row.join(1, larger);
  return row.shared.all[0];
}

template <class Weight>
__device__ uint64_t total_of(Row& row, Weight weight) {
  uint64_t sum = 0;
  row.each([&](float l, int64_t i) { sum += weight(l, i); });
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (row.lane == 0) row.shared.part[row.warp][0] = sum;
  row.join(1, plus);
  return row.shared.all[0];
}

// v[b] of all lanes of a warp: bin (lane / 4) in each lane, halving what is left from step to step.
__device__ inline uint64_t sum_bins(uint64_t (&v)[kBins], int lane) {
#pragma unroll
  for (int half = kBins / 2, mask = 16; half > 0; half /= 2, mask /= 2) {
    const bool high = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const uint64_t send = high ? v[i] : v[i + half];
      const uint64_t keep = high ? v[i + half] : v[i];
      v[i] = keep + __shfl_xor_sync(~0u, send, mask);
    }
  }
  v[0] += __shfl_xor_sync(~0u, v[0], 2);
  v[0] += __shfl_xor_sync(~0u, v[0], 1);
  return v[0];
}

// The largest rank from `low` on from which tokens weigh at least `wanted` together, or any that keeps the same tokens;
// from `low` to `best`, the largest there is, they weigh that much. Ends when one token is left between what is enough
// and what is not.
template <class Weight>
__device__ uint64_t search(Row& row, uint64_t low, uint64_t best, uint64_t wanted, Weight weight) {
  uint64_t above = 0;  // weight of the tokens behind those that are open
  const int width = 64 - __clzll(static_cast<long long>(best - low));
  for (int bits = max(1, (width + kDigit - 1) / kDigit) * kDigit; bits > 0;) {
    bits -= kDigit;
    uint64_t sum[kBins] = {};
    uint32_t count[kBins] = {};
    row.each([&](float l, int64_t i) {
      const uint64_t rank = sampling::rank_of(l, i);
      const uint64_t bin = (rank - low) >> bits;
      if (rank < low || bin >= kBins) return;
      const uint64_t w = weight(l, i);
#pragma unroll
      for (int b = 0; b < kBins; ++b) {
        sum[b] += bin == b ? w : 0;
        count[b] += bin == b ? 1u : 0u;
      }
    });
    const uint64_t bin_sum = sum_bins(sum, row.lane);
    if (row.lane % 4 == 0) row.shared.part[row.warp][row.lane / 4] = bin_sum;
#pragma unroll
    for (int b = 0; b < kBins; ++b) {
      const uint32_t n = __reduce_add_sync(~0u, count[b]);
      if (row.lane == 0) row.shared.part[row.warp][kBins + b] = n;
    }
    row.join(2 * kBins, plus);
    int b = kBins - 1;
    for (; b > 0 && above + row.shared.all[b] < wanted; --b) above += row.shared.all[b];
    low += static_cast<uint64_t>(b) << bits;
    if (row.shared.all[kBins + b] <= 1) break;
  }
  return low;
}

// In ascending id, the first token at which the sum of the weights exceeds `target`, which is below their sum. Follows
// the total_of() of the same weights, whose sums of warps and blocks are still there.
template <class Weight>
__device__ void draw(Row& row, uint64_t target, Weight weight, int32_t* chosen) {
  const uint64_t own = row.shared.part[row.warp][0];
  // What lies before this warp's tokens.
  uint64_t before = 0;
  for (unsigned r = 0; r < row.rank; ++r) {
    before += *cg::this_cluster().map_shared_rank(&row.shared.block[row.turn ^ 1][0], r);
  }
  for (int w = 0; w < row.warp; ++w) before += row.shared.part[w][0];
  if (target < before || target >= before + own) return;
  for (int64_t first = row.begin; first < row.end; first += 32) {
    const int64_t i = first + row.lane;
    uint64_t sum = i < row.end ? weight(row.logits[i], i) : 0;
    for (int d = 1; d < 32; d *= 2) {
      const uint64_t left = __shfl_up_sync(~0u, sum, d);
      if (row.lane >= d) sum += left;
    }
    const unsigned over = __ballot_sync(~0u, before + sum > target);
    if (over != 0) {
      if (row.lane == 0) *chosen = static_cast<int32_t>(first + __ffs(static_cast<int>(over)) - 1);
      return;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
}

__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 2) sample_kernel(SampleArgs a, int shift) {
  __shared__ Shared shared;
  const int64_t at = blockIdx.y;
  const SampleRow p = a.row[at];
  const unsigned rank = cg::this_cluster().block_rank();
  if (p.wanted == 0) {
    if (rank == 0 && threadIdx.x == 0) a.chosen[at] = kNotWanted;
    return;
  }
  const int64_t share = (a.vocab + kCluster * kWarps - 1) / (kCluster * kWarps);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t begin = min((int64_t{rank} * kWarps + warp) * share, a.vocab);
  Row row{.shared = shared,
          .logits = a.logits + at * a.vocab,
          .begin = begin,
          .end = min(begin + share, a.vocab),
          .lane = static_cast<int>(threadIdx.x) % 32,
          .warp = warp,
          .rank = rank};
  const uint64_t best = largest_rank(row);
  const float largest = row.logits[sampling::id_of(best)];
  if (!sampling::is_finite(largest) || p.exponent == 0) {
    if (rank == 0 && threadIdx.x == 0) a.chosen[at] = sampling::is_finite(largest) ? sampling::id_of(best) : kNotFinite;
  } else {
    const auto weight = [&](float l, int64_t) { return sampling::weight_of(l, largest, p.exponent, shift); };
    uint64_t cut = 0;
    if (p.top_k > 0 && p.top_k < a.vocab) {
      cut = search(row, 0, best, static_cast<uint64_t>(p.top_k), [](float, int64_t) { return uint64_t{1}; });
    }
    if (p.top_p < 1.0f) {
      const auto within = [&](float l, int64_t i) {
        return sampling::rank_of(l, i) >= cut ? weight(l, i) : uint64_t{0};
      };
      // Nothing that is further from the largest logit weighs anything.
      const double reach = (shift + 2.0) / p.exponent;
      const float lowest = __double2float_rd(static_cast<double>(largest) - reach);
      const uint64_t low = larger(cut, uint64_t{sampling::sort_key(lowest)} << sampling::kIdBits);
      cut = search(row, low, best, sampling::share_of(total_of(row, within), p.top_p), within);
    }
    const uint64_t least = sampling::least_weight(p.min_p, shift);
    const auto kept = [&](float l, int64_t i) {
      if (sampling::rank_of(l, i) < cut) return uint64_t{0};
      const uint64_t w = weight(l, i);
      return w >= least ? w : uint64_t{0};
    };
    const uint64_t total = total_of(row, kept);
    draw(row, sampling::scaled(sampling::random_bits(p.seed, p.sequence, p.position, 0), total), kept, &a.chosen[at]);
  }
  cg::this_cluster().sync();  // nobody leaves while others read its sums
}

__global__ void place_tokens_kernel(PlaceTokensArgs a) {
  for (int i = static_cast<int>(threadIdx.x); i < a.count; i += static_cast<int>(blockDim.x)) {
    a.token[a.place[i]] = max(a.chosen[a.source[i]], 0);
  }
}

}  // namespace

void sample(Context& base, const SampleArgs& args) {
  if (args.rows <= 0) return;
  CudaContext& context = cuda(base);
  const dim3 grid(kCluster, static_cast<unsigned>(args.rows));
  sample_kernel<<<grid, kThreads, 0, context.stream>>>(args, sampling::shift_of(args.vocab));
  MDI_CUDA_LAUNCHED(context, "sample");
}

void place_tokens(Context& base, const PlaceTokensArgs& args) {
  if (args.count <= 0) return;
  CudaContext& context = cuda(base);
  place_tokens_kernel<<<1, 128, 0, context.stream>>>(args);
  MDI_CUDA_LAUNCHED(context, "place_tokens");
}

}  // namespace mdi::cuda
