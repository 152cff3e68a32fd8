// Sparse attention (spec 6.7) with 64 heads of 512 (or groups of 64) on the tensor cores.
//
// Work: 84 MFLOP a query of 640 keys, 344 GFLOP for 4,096 queries: 0.51 ms at the card's sustained bf16 rate. Bytes: q
// and o, 0.54 GB for 4,096 queries; keys are read through L2 (288 bytes each, never gathered to memory).
// Measured on an H200: 1.15 ms for 4,096 queries (44% of that floor), 0.30 ms for the window alone, 0.04 ms for 64
// queries. Most stalls wait for loads from memory. Two warpgroups of expansion (512 threads, pairs of 128-column
// products) whose loads of the next block follow each row's expansion took 1.31 ms: at 64 registers
// the compiler spills scales right behind their loads, and every spill waits for its load.
//
// A block of threads stays on a multiprocessor and takes one query after the other; the 64 heads are the rows of every
// product. One warpgroup reads and expands keys, 64 at a time, into a stage of bf16 [64 keys, 512] in shared memory,
// which serves twice: K-major as the keys of S = Q K^T, N-major as the values of O = P V. Expansion is cheap beside the
// products (about 3 instructions a value) and runs a stage ahead of them, across queries. One warpgroup computes S and
// the online softmax, and holds O[:, :256]; another holds O[:, 256:], because 64 x 512 fp32 sums do not fit one. P is
// laid out in the first one's registers just as both need it as the left operand, so thread i hands its registers to
// thread i of the other through shared memory. The next block's S is issued behind O's product, so that the tensor
// cores have it queued.
//
// A block's order and rounding are the oracle's; a query's bits depend on nothing else. Blocks of 64 without any key
// are passed over, which changes nothing.
#include <algorithm>

#include "kernels/cuda/attention_keys_tile.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

namespace attention_block {
namespace {

// The compiler must not move uses of a product's registers above the wait for it.
template <int kCount>
__device__ inline void pin(float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(v[i])::"memory");
}

// The tile of values [64 keys, 512] as the right operand [keys, 256 channels] of O's product: panels of 64 channels are
// 8192 bytes apart, groups of eight keys 1024.
__device__ inline uint64_t values_descriptor(uint32_t shared) {
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{kPanel >> 4} << 16) | ((shared & 0x3FFFFu) >> 4);
}

struct Consumer {
  uint32_t base;
  uint8_t* shared;
  Barriers barriers;
  StageCounter at;
  uint32_t weights_parity = 0;

  __device__ BlockInfo info() const {
    return *reinterpret_cast<const BlockInfo*>(shared + kInfo + static_cast<uint32_t>(at.stage) * sizeof(BlockInfo));
  }
  __device__ uint32_t weights_at(int thread, int step) const {
    return base + kWeights + static_cast<uint32_t>(step * 128 + thread) * 16u;
  }
  __device__ float2& factors(int thread) const {
    return *reinterpret_cast<float2*>(shared + kFactors + static_cast<uint32_t>(thread) * 8u);
  }
  __device__ static void rescale(float (&o)[128], float2 factor) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      o[4 * j] *= factor.x;
      o[4 * j + 1] *= factor.x;
      o[4 * j + 2] *= factor.y;
      o[4 * j + 3] *= factor.y;
    }
  }
  // O += P V of one stage's keys and 256 channels.
  __device__ static void multiply_values(float (&o)[128], const uint32_t (&weights)[4][4], uint32_t values,
                                         bool first) {
    const uint64_t v = values_descriptor(values);
    pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_bf16_rs_mn(o, weights[step], v + static_cast<uint64_t>(step) * (16 * 128 >> 4), first && step == 0 ? 0 : 1);
    }
    ptx::wgmma_commit();
  }
  // O times 1 / total as bf16: four lanes that hold a row's neighbouring pairs of columns turn four groups of eight
  // columns around, so that each stores eight neighbours.
  __device__ static void write(const WgmmaParams& w, int unit, int thread, int channel, const float (&o)[128],
                               float2 factor) {
    const int quad = thread % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      bf16* const to = w.p.args.o + (int64_t{unit} * kHeads + head) * kDim + channel + 8 * quad;
      const float f = r == 0 ? factor.x : factor.y;
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = pack_bf16(o[4 * (j + k) + 2 * r] * f, o[4 * (j + k) + 2 * r + 1] * f);
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, (quad & 1) != 0 ? v[k] : v[k + 1], 1);
          ((quad & 1) != 0 ? v[k] : v[k + 1]) = got;
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, (quad & 2) != 0 ? v[k] : v[k + 2], 2);
          ((quad & 2) != 0 ? v[k] : v[k + 2]) = got;
        }
        *reinterpret_cast<uint4*>(to + 8 * j) = {v[0], v[1], v[2], v[3]};
      }
    }
  }

  __device__ void load_query(const WgmmaParams& w, int unit) const {
    ptx::barrier_arrive_expect(barriers.query(), kTile);
    for (uint32_t panel = 0; panel < kDim / 64; ++panel) {
      ptx::tensor_load(base + kQ + panel * kPanel, &w.q, static_cast<int32_t>(64 * panel), unit * kHeads,
                       barriers.query());
    }
  }
  __device__ void multiply_keys(float (&s)[32]) const {
    const uint64_t q = ptx::descriptor_128(base + kQ), k = ptx::descriptor_128(at.at(base));
    pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const auto offset = static_cast<uint64_t>(step / 4 * (kPanel >> 4) + step % 4 * 2);
      wgmma_bf16_ss(s, q + offset, k + offset, step == 0 ? 0 : 1);
    }
    ptx::wgmma_commit();
  }

  // S of a block to P: scales, masks, moves the running maxima; s becomes P, unrounded. Returns the decays of both
  // rows.
  __device__ static float2 softmax(float (&s)[32], BlockInfo block, float scale, float (&largest)[2], float (&sum)[2]) {
    const int quad = static_cast<int>(threadIdx.x) % 4;
    const bool whole = (block.mask[0] & block.mask[1]) == 0xFFFFFFFFu;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = whole ? 3u : block.mask[j / 4] >> (8 * (j % 4) + 2 * quad);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] = (bits >> (i % 2) & 1u) != 0 ? s[4 * j + i] * scale : -INFINITY;
    }
    float decay[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      decay[r] = __expf(largest[r] - top);
      largest[r] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[4 * j + i] = __expf(s[4 * j + i] - top);
          part += s[4 * j + i];
        }
      }
      sum[r] = sum[r] * decay[r] + part;
    }
    pin(sum);  // not later, when s is written again
    return {decay[0], decay[1]};
  }

  // The warpgroup of S, the softmax and O[:, :256].
  __device__ void lead(const WgmmaParams& w) {
    const int thread = static_cast<int>(threadIdx.x);
    uint32_t query_parity = 0;
    float o[128], s[32];
    if (thread == 0) load_query(w, static_cast<int>(blockIdx.x));
    for (int unit = static_cast<int>(blockIdx.x); unit < w.units; unit += static_cast<int>(gridDim.x)) {
      float largest[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
      ptx::barrier_wait(barriers.query(), query_parity);
      query_parity ^= 1;
      ptx::barrier_wait(barriers.full(at.stage), at.parity);
      multiply_keys(s);
      ptx::wgmma_wait<0>();
      pin(s);
      bool first = true;
      // Softmax of the block whose S has arrived, P to the other warpgroup, O's product under way.
      const auto attend = [&](BlockInfo block) {
        const float2 decay = softmax(s, block, w.p.args.scale, largest, sum);
        uint32_t weights[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
        ptx::barrier_wait(barriers.weights_empty(), weights_parity ^ 1u);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::store_16(weights_at(thread, step),
                        {weights[step][0], weights[step][1], weights[step][2], weights[step][3]});
        }
        factors(thread) = decay;
        warp_arrive(barriers.weights_full());
        weights_parity ^= 1;
        if (!first) rescale(o, decay);
        multiply_values(o, weights, at.at(base), first);
        first = false;
      };
      BlockInfo block = info();
      while (block.last == 0) {
        attend(block);
        const uint32_t behind = barriers.empty(at.stage);
        at.advance();
        ptx::barrier_wait(barriers.full(at.stage), at.parity);
        block = info();
        multiply_keys(s);
        ptx::wgmma_wait<1>();
        warp_arrive(behind);
        ptx::wgmma_wait<0>();
        pin(o);
        pin(s);
      }
      ptx::named_barrier(kQueryBarrier, 128);  // the query has been read by all four warps: the next one may come
      const int next = unit + static_cast<int>(gridDim.x);
      if (thread == 0 && next < w.units) load_query(w, next);
      attend(block);
      ptx::wgmma_wait<0>();
      pin(o);
      warp_arrive(barriers.empty(at.stage));
      at.advance();
      float2 inverse;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
        const int head = unit % w.groups * kHeads + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
        const float total = sum[r] + __expf(__ldg(w.p.args.sink + head) - largest[r]);
        (r == 0 ? inverse.x : inverse.y) = 1.0f / total;
      }
      ptx::barrier_wait(barriers.weights_empty(), weights_parity ^ 1u);
      factors(thread) = inverse;
      warp_arrive(barriers.weights_full());
      weights_parity ^= 1;
      write(w, unit, thread, 0, o, inverse);
    }
  }

  // The warpgroup of O[:, 256:].
  __device__ void follow(const WgmmaParams& w) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    float o[128];
    for (int unit = static_cast<int>(blockIdx.x); unit < w.units; unit += static_cast<int>(gridDim.x)) {
      bool last = false;
      for (bool first = true; !last; first = false) {
        ptx::barrier_wait(barriers.weights_full(), weights_parity);
        weights_parity ^= 1;
        uint32_t weights[4][4];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint4 v = ptx::load_16(weights_at(thread, step));
          weights[step][0] = v.x;
          weights[step][1] = v.y;
          weights[step][2] = v.z;
          weights[step][3] = v.w;
        }
        const float2 decay = factors(thread);
        warp_arrive(barriers.weights_empty());
        ptx::barrier_wait(barriers.full(at.stage), at.parity);
        last = info().last != 0;
        if (!first) rescale(o, decay);
        multiply_values(o, weights, at.at(base) + 4 * kPanel, first);
        ptx::wgmma_wait<0>();
        pin(o);
        warp_arrive(barriers.empty(at.stage));
        at.advance();
      }
      ptx::barrier_wait(barriers.weights_full(), weights_parity);
      weights_parity ^= 1;
      const float2 inverse = factors(thread);
      warp_arrive(barriers.weights_empty());
      write(w, unit, thread, 256, o, inverse);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1) attention_wgmma_kernel(const __grid_constant__ WgmmaParams w) {
  extern __shared__ uint8_t raw[];
  const uint32_t raw_address = ptx::shared_address(raw);
  const uint32_t base = (raw_address + 1023u) & ~1023u;
  uint8_t* const shared = raw + (base - raw_address);
  const Barriers barriers{base + kBarriers};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(barriers.full(stage), kProducerWarps);
      ptx::barrier_init(barriers.empty(stage), 8);  // warps of both consumers
    }
    ptx::barrier_init(barriers.query(), 1);
    ptx::barrier_init(barriers.weights_full(), 4);
    ptx::barrier_init(barriers.weights_empty(), 4);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::more_registers<224>();
    Consumer{.base = base, .shared = shared, .barriers = barriers, .at = {}}.lead(w);
  } else if (threadIdx.x < 256) {
    ptx::more_registers<176>();
    Consumer{.base = base, .shared = shared, .barriers = barriers, .at = {}}.follow(w);
  } else {
    ptx::fewer_registers<104>();
    Producer{.base = base, .shared = shared, .barriers = barriers, .at = {}}.run(w);
  }
}

bool aligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

bool fits(const AttentionParams& p) {
  const SparseAttentionArgs& a = p.args;
  const SourceCache& cache = a.cache;
  if (a.heads % kHeads != 0 || a.head_dim != kDim || a.ring.window % kKeys != 0 || p.slots > kMaxSlots) return false;
  if (!aligned(a.q, 16) || !aligned(a.o, 16) || !aligned(a.window_rows, 8) || !aligned(a.ring.base, 8)) return false;
  if (a.ring.slot_stride % 8 != 0) return false;
  return a.topk == 0 || (aligned(cache.blocks, 4) && cache.block_bytes % 4 == 0 && cache.layout.kv_codes % 4 == 0);
}

void launch(CudaContext& context, const AttentionParams& p) {
  WgmmaParams w{};
  w.p = p;
  w.groups = p.args.heads / kHeads;
  w.units = p.step.rows * w.groups;
  tensor_map(w.q, p.args.q, 2, int64_t{w.units} * kHeads, kDim, kDim * 2, kHeads, 64, BoxSwizzle::k128);
  static const bool allowed = [] {
    MDI_CUDA(cudaFuncSetAttribute(attention_wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTotal));
    return true;
  }();
  static_cast<void>(allowed);
  const int blocks = std::min(context.multiprocessors, w.units);
  attention_wgmma_kernel<<<static_cast<unsigned>(blocks), kThreads, kTotal, context.stream>>>(w);
  MDI_CUDA_LAUNCHED(context, "attention [" + std::to_string(p.step.rows) + ", " + std::to_string(p.args.heads) + ", " +
                                 std::to_string(kDim) + "]");
}

}  // namespace
}  // namespace attention_block

bool fits_attention_wgmma(const AttentionParams& p) { return attention_block::fits(p); }
void attention_wgmma(CudaContext& context, const AttentionParams& p) { attention_block::launch(context, p); }

}  // namespace mdi::cuda
