// Both selections of spec 6.6 from rows of bf16 scores: the k best positions, and the best blocks of positions.
//
// Scores of 4,096 queries of 65,536 keys are 0.54 GB: 0.13 ms a read at 4267 GB/s, less where the L2 holds them
// (reached: positions 0.53 ms; at 131,072 keys 1.0 ms, blocks 0.74 ms). A block of threads a row. Usually it reads the
// row twice:
//  1. The k-th largest of the maxima of 1,024 groups of entries is a bound that at least k entries reach.
//  2. What reaches it goes to a list, in any order: about 1.5 k entries. The list is small enough to count in bins of
//     one key each for the exact threshold, and a bitmap of the row puts positions in order.
// Rows that do not fit (many ties at the bound, very long or very short ones) and blocks of positions, whose keys then
// lie in shared memory, are counted whole: coarse bins, exact bins, and a pass that writes in order.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/index.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kBins = 4096;
constexpr int kBinsOfThread = kBins / kThreads;
constexpr int kNone = -1;        // the key of an entry that cannot be selected
constexpr int kNewest = 0xFFFE;  // above every number
constexpr int kMinusInfinity = 0x8000 - 0x7F80;

struct SelectParams {
  IndexRows rows;
  int32_t block_size;  // of the blocks that are selected
  int32_t k;
  int32_t* out;  // [T, k]
};

// Orders bf16 values as numbers do: +0 and -0 are equal, NaN is the smallest of all.
__device__ inline int order_key(uint32_t bits) {
  const int magnitude = static_cast<int>(bits & 0x7FFFu);
  const int key = (bits & 0x8000u) != 0 ? 0x8000 - magnitude : 0x8000 + magnitude;
  return magnitude > 0x7F80 ? 0 : key;
}

// ---- entries of a row -----------------------------------------------------------------------------------------------
// kBlocks: an entry is a block of positions, else a position. A thread takes eight neighbouring entries at a time.
constexpr int kWidth = 8;
constexpr int kChunk = kThreads * kWidth;

__device__ inline int keys_of(uint4 v, int (&key)[kWidth]) {
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
  int best = kNone;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const int k = order_key(pairs[i / 2] >> (i % 2 * 16) & 0xFFFFu);
    key[i] = k != kMinusInfinity ? k : kNone;
    best = max(best, key[i]);
  }
  return best;
}

template <bool kBlocks>
struct Entries {
  const bf16* scores;
  int scored, count, block_size;
  const uint16_t* cached;  // key + 1 of every entry, or null

  __device__ uint4 word(int first) const {
    return first < count ? *reinterpret_cast<const uint4*>(scores + first) : uint4{0, 0, 0, 0};
  }
  __device__ int block_key(int block) const {
    const int begin = block * block_size, end = min(begin + block_size, scored);
    if (end == scored) return kNewest;
    int best = 0;
    if (block_size == 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(scores + begin);
      for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
        best = max(best, max(order_key(pair & 0xFFFFu), order_key(pair >> 16)));
      }
    } else {
      for (int i = begin; i < end; ++i) best = max(best, order_key(scores[i].bits));
    }
    return best == kMinusInfinity ? kNone : best;
  }
  __device__ void load(int first, int (&key)[kWidth]) const {
    if constexpr (kBlocks) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        key[i] = first + i >= count ? kNone : cached != nullptr ? cached[first + i] - 1 : block_key(first + i);
      }
    } else {
      keys_of(word(first), key);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (first + i >= count) key[i] = kNone;
      }
    }
  }
};

constexpr int kListed = 4096;    // entries of the list
constexpr int kMapped = 131072;  // entries that the bitmaps cover
constexpr int kWords = kMapped / 32;
constexpr int kCached = 16384;             // blocks whose keys are kept
constexpr int kMostListed = 2 * kThreads;  // the largest k that the list serves: one for each group

struct Shared {
  uint32_t bins[kBins];
  int warp[kThreads / 32];
  int bin, above, listed;
};
struct ListShared : Shared {
  uint32_t sure[kWords], tied[kWords];  // bits of positions
  int32_t at[kListed];
  uint16_t key[kListed];
};
struct BlockShared : Shared {
  uint16_t key[kCached];
};

// Sum over the threads before this one, and over all.
__device__ inline int prefix_sum(Shared& shared, int value, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) shared.warp[warp] = sum;
  __syncthreads();
  int other = lane < kThreads / 32 ? shared.warp[lane] : 0;
#pragma unroll
  for (int step = 1; step < kThreads / 32; step *= 2) {
    const int left = __shfl_up_sync(0xFFFFFFFFu, other, step);
    if (lane >= step) other += left;
  }
  total = __shfl_sync(0xFFFFFFFFu, other, kThreads / 32 - 1);
  const int before = __shfl_sync(0xFFFFFFFFu, other, max(warp - 1, 0));
  __syncthreads();
  return sum - value + (warp > 0 ? before : 0);
}

__device__ inline void clear_bins(Shared& shared) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.bins[i] = 0;
  __syncthreads();
}

// The bin that holds the k-th largest entry counted, and how many are in bins above. False: fewer than k were counted.
__device__ inline bool find_bin(Shared& shared, int k) {
  __syncthreads();
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
  int sum = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kBinsOfThread; ++i) sum += static_cast<int>(shared.bins[top - i]);
  int above = prefix_sum(shared, sum, total);
  if (above < k && above + sum >= k) {
    int bin = top;
    while (above + static_cast<int>(shared.bins[bin]) < k) above += static_cast<int>(shared.bins[bin--]);
    shared.bin = bin;
    shared.above = above;
  }
  __syncthreads();
  return total >= k;
}

// Counts entries from `bound` on, in bins of `width` keys from it; the last bin takes all that is further.
template <bool kBlocks>
__device__ inline void count_row(Shared& shared, const Entries<kBlocks>& row, int bound, int width) {
  clear_bins(shared);
  for (int first = static_cast<int>(threadIdx.x) * kWidth; first < row.count; first += kChunk) {
    int key[kWidth];
    row.load(first, key);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (key[i] >= bound) atomicAdd(&shared.bins[min((key[i] - bound) / width, kBins - 1)], 1u);
    }
  }
}

struct Output {
  int32_t* out;  // of the row
  int32_t k;
  const int32_t* candidates;  // of the row, or null
  int32_t block_size;         // of the candidates

  __device__ void write(int i, int32_t at) const {
    out[i] = candidates == nullptr ? at : candidates[at / block_size] * block_size + at % block_size;
  }
  __device__ void fill(int from) const {
    for (int i = from + static_cast<int>(threadIdx.x); i < k; i += kThreads) out[i] = -1;
  }
};

// By reading the row three times: any row, any k.
template <bool kBlocks>
__device__ inline void select_whole(Shared& shared, const Entries<kBlocks>& row, const Output& o) {
  const int thread = static_cast<int>(threadIdx.x);
  int threshold = kNone, ties = 0;  // entries above it are taken, and the first `ties` of those at it
  if (row.count > o.k) {
    count_row(shared, row, 0, 16);
    if (find_bin(shared, o.k)) {
      const int bound = shared.bin * 16;
      count_row(shared, row, bound, 1);
      find_bin(shared, o.k);
      threshold = bound + shared.bin;
      ties = o.k - shared.above;
    }
  }
  int taken = 0, tied = 0;  // so far: above the threshold; at it
  for (int base = 0; base < row.count && taken + min(tied, ties) < o.k; base += kChunk) {
    int key[kWidth];
    const int first = base + thread * kWidth;
    row.load(first, key);
    int counts = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) counts += key[i] > threshold ? 1 : key[i] == threshold && ties > 0 ? 1 << 16 : 0;
    int total = 0;
    const int before = prefix_sum(shared, counts, total);
    int sure = taken + (before & 0xFFFF), tie = tied + (before >> 16);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const bool above = key[i] > threshold, equal = ties > 0 && key[i] == threshold;
      if (above || (equal && tie < ties)) o.write(sure + min(tie, ties), first + i);
      sure += above ? 1 : 0;
      tie += equal ? 1 : 0;
    }
    taken += total & 0xFFFF;
    tied += total >> 16;
  }
  o.fill(taken + min(tied, ties));
}

// Fills the list with every entry that reaches a bound which at least k reach. False: there are too many.
__device__ inline bool list_row(ListShared& shared, const Entries<false>& row, int k) {
  constexpr int kAhead = 4;  // loads in flight
  const int thread = static_cast<int>(threadIdx.x);
  int bound = 0;
  if (row.count > kListed) {
    int low = kNone, high = kNone;  // maxima of two groups
    for (int base = thread * kWidth; base < row.count; base += kAhead * kChunk) {
      uint4 v[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) v[i] = row.word(base + i * kChunk);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (base + i * kChunk + kWidth > row.count) continue;  // a group may leave entries out
        int key[kWidth];
        keys_of(v[i], key);
        low = max(low, max(max(key[0], key[1]), max(key[2], key[3])));
        high = max(high, max(max(key[4], key[5]), max(key[6], key[7])));
      }
    }
    clear_bins(shared);
    if (low >= 0) atomicAdd(&shared.bins[low / 16], 1u);
    if (high >= 0) atomicAdd(&shared.bins[high / 16], 1u);
    if (find_bin(shared, k)) bound = shared.bin * 16;
  }
  if (thread == 0) shared.listed = 0;
  __syncthreads();
  for (int base = thread * kWidth; base < row.count; base += kAhead * kChunk) {
    uint4 v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) v[i] = row.word(base + i * kChunk);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      int key[kWidth];
      if (keys_of(v[i], key) < bound) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int at = base + i * kChunk + j;
        if (key[j] < bound || at >= row.count) continue;
        const int slot = atomicAdd(&shared.listed, 1);
        if (slot < kListed) {
          shared.at[slot] = at;
          shared.key[slot] = static_cast<uint16_t>(key[j]);
        }
      }
    }
  }
  __syncthreads();
  return shared.listed <= kListed;
}

// The k best of the list, in order of position.
__device__ inline void select_listed(ListShared& shared, int count, const Output& o) {
  const int thread = static_cast<int>(threadIdx.x), listed = shared.listed;
  int threshold = kNone, ties = 0;
  if (listed > o.k) {
    clear_bins(shared);
    for (int i = thread; i < listed; i += kThreads) atomicAdd(&shared.bins[shared.key[i] / 16], 1u);
    find_bin(shared, o.k);
    const int bound = shared.bin * 16;
    clear_bins(shared);
    for (int i = thread; i < listed; i += kThreads) {
      if (shared.key[i] >= bound) atomicAdd(&shared.bins[min(shared.key[i] - bound, kBins - 1)], 1u);
    }
    find_bin(shared, o.k);
    threshold = bound + shared.bin;
    ties = o.k - shared.above;
  }
  const int words = (count + 31) / 32;
  for (int i = thread; i < words; i += kThreads) shared.sure[i] = shared.tied[i] = 0;
  __syncthreads();
  for (int i = thread; i < listed; i += kThreads) {
    const int key = shared.key[i], at = shared.at[i];
    if (key > threshold) atomicOr(&shared.sure[at / 32], 1u << (at % 32));
    if (key == threshold) atomicOr(&shared.tied[at / 32], 1u << (at % 32));
  }
  __syncthreads();
  const int each = (words + kThreads - 1) / kThreads, begin = thread * each, end = min(begin + each, words);
  int counts = 0, total = 0;
  for (int i = begin; i < end; ++i) counts += __popc(shared.sure[i]) + (__popc(shared.tied[i]) << 16);
  const int before = prefix_sum(shared, counts, total);
  int sure = before & 0xFFFF, tie = before >> 16;
  for (int i = begin; i < end; ++i) {
    const uint32_t certain = shared.sure[i];
    for (uint32_t left = certain | shared.tied[i]; left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      const bool above = (certain >> bit & 1u) != 0;
      if (above || tie < ties) o.write(sure + min(tie, ties), 32 * i + bit);
      sure += above ? 1 : 0;
      tie += above ? 0 : 1;
    }
  }
  o.fill((total & 0xFFFF) + min(total >> 16, ties));
}

__global__ void __launch_bounds__(kThreads, 3) select_positions_kernel(const SelectParams p) {
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<ListShared*>(memory);
  const IndexRows& r = p.rows;
  const int64_t t = r.first + int64_t{blockIdx.x};
  const int thread = static_cast<int>(threadIdx.x);
  int scored = (r.step.position[t] + 1) / r.cache.layout.ratio;
  const int32_t* candidates = nullptr;
  if (r.candidates != nullptr) {
    candidates = r.candidates + t * r.candidate_blocks;
    int kept = 0;
    for (int i = 0; i < r.candidate_blocks; i += kThreads) {
      kept += __syncthreads_count(i + thread < r.candidate_blocks && candidates[i + thread] >= 0);
    }
    // All whole but perhaps the last, which `scored` cuts.
    const int last = kept > 0 ? scored - candidates[kept - 1] * r.block_size : 0;
    scored = kept > 0 ? (kept - 1) * r.block_size + min(max(last, 0), r.block_size) : 0;
  }
  const Entries<false> row{r.scores + int64_t{blockIdx.x} * r.stride, scored, scored, 1, nullptr};
  const Output output{p.out + t * p.k, p.k, candidates, r.block_size};
  if (row.count > p.k && row.count <= kMapped && p.k <= kMostListed && list_row(shared, row, p.k)) {
    select_listed(shared, row.count, output);
  } else {
    select_whole(shared, row, output);
  }
}

__global__ void __launch_bounds__(kThreads, 3) select_blocks_kernel(const SelectParams p) {
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<BlockShared*>(memory);
  const IndexRows& r = p.rows;
  const int64_t t = r.first + int64_t{blockIdx.x};
  const int scored = (r.step.position[t] + 1) / r.cache.layout.ratio;
  Entries<true> row{r.scores + int64_t{blockIdx.x} * r.stride, scored, (scored + p.block_size - 1) / p.block_size,
                    p.block_size, nullptr};
  if (row.count <= kCached) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kThreads) {
      shared.key[i] = static_cast<uint16_t>(row.block_key(i) + 1);
    }
    __syncthreads();
    row.cached = shared.key;
  }
  select_whole(shared, row, Output{p.out + t * p.k, p.k, nullptr, 1});
}

template <class Memory>
void launch(CudaContext& context, void (*kernel)(SelectParams), const SelectParams& p) {
  MDI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Memory)));
  kernel<<<static_cast<unsigned>(p.rows.count), kThreads, sizeof(Memory), context.stream>>>(p);
}

}  // namespace

void select_positions(CudaContext& context, const IndexRows& rows, int32_t k, int32_t* selected) {
  if (rows.count == 0 || k == 0) return;
  launch<ListShared>(context, select_positions_kernel, {rows, 1, k, selected});
  MDI_CUDA_LAUNCHED(context, "select positions [" + std::to_string(rows.count) + ", " + std::to_string(k) + "]");
}

void select_blocks(CudaContext& context, const IndexRows& rows, int32_t block_size, int32_t keep, int32_t* candidates) {
  if (rows.count == 0 || keep == 0) return;
  launch<BlockShared>(context, select_blocks_kernel, {rows, block_size, keep, candidates});
  MDI_CUDA_LAUNCHED(context, "select blocks [" + std::to_string(rows.count) + ", " + std::to_string(keep) + "]");
}

}  // namespace mdi::cuda
