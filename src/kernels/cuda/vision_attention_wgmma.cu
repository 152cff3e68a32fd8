// Attention of every patch to every patch, heads of 64, on the tensor cores.
//
// Work at 9,216 patches and 16 heads: S and P V are 174 GFLOP each. The weights P are fp32 in the contract, so they go
// to the tensor cores as two bf16 parts (2^-17 of a weight is left out): P V counts twice, 522 GFLOP, 0.78 ms at the
// sustained bf16 rate. Bytes: keys and values of a head are 2.4 MB and stay in L2.
// Measured on an H200: 0.98 ms for 8,928 patches, 75% of that floor (502 TFLOP/s with the second part, 335 without);
// 0.042 ms for 1,530, where 128 blocks of 192 queries take one wave.
//
// A block takes 192 queries of one head. One warp copies tiles of 64 keys and values into a ring; three warpgroups of
// 64 queries each multiply. A tile is 128 clocks of S and 256 of P V on the tensor cores, and about 250 issue slots of
// softmax a scheduler: three warpgroups keep the tensor cores fed while one of them is at its exponentials. S of the
// next tile is issued behind P V of this one. Queries stay in registers, P goes from the accumulators of S to the
// operands of P V without leaving them.
#include <algorithm>
#include <string>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/vision.h"
#include "kernels/cuda/wgmma.h"

namespace mdi::cuda {

namespace {

constexpr int kDim = 64, kKeys = 64, kConsumers = 3, kQueries = 64 * kConsumers, kStages = 8;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr uint32_t kTile = kKeys * kDim * 2, kStage = 2 * kTile;  // keys, then values
constexpr uint32_t kBarriers = kStages * kStage;
constexpr uint32_t kShared = kBarriers + 2 * kStages * 8 + 1024;

struct Params {
  CUtensorMap keys, values;
  VisionAttentionParams p;
  float factor;  // scale * log2(e)
};

struct Ring {
  uint32_t base;
  int stage = 0;
  uint32_t parity = 0;
  __device__ uint32_t keys() const { return base + static_cast<uint32_t>(stage) * kStage; }
  __device__ uint32_t values() const { return keys() + kTile; }
  __device__ uint32_t full() const { return base + kBarriers + 8u * static_cast<uint32_t>(stage); }
  __device__ uint32_t empty() const { return base + kBarriers + 8u * static_cast<uint32_t>(kStages + stage); }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

// The compiler must not move uses of a product's registers above the wait for it.
template <int kCount>
__device__ inline void pin(float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(v[i])::"memory");
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline void warp_arrive(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier);
}

__device__ void produce(const Params& w, Ring ring, int tiles) {
  const int head = static_cast<int>(blockIdx.y);
  ring.parity = 1;  // all stages are free
  for (int t = 0; t < tiles; ++t) {
    ptx::barrier_wait(ring.empty(), ring.parity);
    ptx::barrier_arrive_expect(ring.full(), kStage);
    ptx::tensor_load(ring.keys(), &w.keys, (w.p.heads + head) * kDim, t * kKeys, ring.full());
    ptx::tensor_load(ring.values(), &w.values, (2 * w.p.heads + head) * kDim, t * kKeys, ring.full());
    ring.advance();
  }
}

struct Consumer {
  const Params& w;
  int row;   // of this thread's first query; the second is row + 8
  int quad;  // which columns of a group of eight: 2 quad and on

  // A operands of the 64 queries: zeros past the last patch.
  __device__ void load_queries(uint32_t (&q)[4][4]) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + 8 * (i % 2), d = 16 * step + 8 * (i / 2) + 2 * quad;
        const bf16* at = w.p.turned + (int64_t{r} * 2 * w.p.heads + blockIdx.y) * kDim + d;
        q[step][i] = r < w.p.rows ? *reinterpret_cast<const uint32_t*>(at) : 0u;
      }
    }
  }
  __device__ static void multiply_keys(float (&s)[32], const uint32_t (&q)[4][4], uint32_t keys) {
    const uint64_t k = ptx::descriptor_128(keys);
    pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_bf16_rs(s, q[step], k + static_cast<uint64_t>(2 * step), step == 0 ? 0 : 1);
    }
    ptx::wgmma_commit();
  }
  // Values [64 keys, 64] as the right operand with channels contiguous: sixteen keys are 2048 bytes.
  __device__ static void multiply_values(float (&o)[32], const uint32_t (&high)[4][4], const uint32_t (&low)[4][4],
                                         uint32_t values) {
    const uint64_t v = ptx::descriptor_128(values);
    pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_bf16_rs_mn(o, high[step], v + static_cast<uint64_t>(step) * (16 * 128 >> 4), 1);
      wgmma_bf16_rs_mn(o, low[step], v + static_cast<uint64_t>(step) * (16 * 128 >> 4), 1);
    }
    ptx::wgmma_commit();
  }
  // S of a tile with `live` keys to weights, in two parts; returns the decays of both rows.
  __device__ float2 soften(float (&s)[32], int live, float (&largest)[2], float (&sum)[2], uint32_t (&high)[4][4],
                           uint32_t (&low)[4][4]) const {
    if (live < kKeys) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (8 * (i / 4) + 2 * quad + i % 2 >= live) s[i] = -INFINITY;
      }
    }
    float decay[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      decay[r] = exp2_fast((largest[r] - top) * w.factor);
      largest[r] = top;
      const float shift = -top * w.factor;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 4 * j + 2 * r; i < 4 * j + 2 * r + 2; ++i) {
          s[i] = exp2_fast(__fmaf_rn(s[i], w.factor, shift));
          part += s[i];
        }
      }
      sum[r] = sum[r] * decay[r] + part;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t pair = pack_bf16(s[2 * i], s[2 * i + 1]);
      high[i / 4][i % 4] = pair;
      low[i / 4][i % 4] = pack_bf16(s[2 * i] - low_half(pair), s[2 * i + 1] - high_half(pair));
    }
    pin(sum);  // not later, when s is written again
    return {decay[0], decay[1]};
  }

  __device__ void write(const float (&o)[32], const float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= w.p.rows) continue;
      bf16* const to = w.p.o + (int64_t{row + 8 * r} * w.p.heads + blockIdx.y) * kDim + 2 * quad;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        *reinterpret_cast<uint32_t*>(to + 8 * j) =
            pack_bf16(__fdiv_rn(o[4 * j + 2 * r], sum[r]), __fdiv_rn(o[4 * j + 2 * r + 1], sum[r]));
      }
    }
  }

  __device__ void run(Ring ring, int tiles) const {
    uint32_t q[4][4], high[4][4], low[4][4];
    float s[32], o[32] = {};
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    load_queries(q);
    ptx::barrier_wait(ring.full(), ring.parity);
    multiply_keys(s, q, ring.keys());
    ptx::wgmma_wait<0>();
    pin(s);
    for (int t = 0; t < tiles; ++t) {
      const float2 decay = soften(s, w.p.rows - t * kKeys, largest, sum, high, low);
      // A factor of 1 changes nothing, and after the first tiles few rows find a larger score.
      if (__any_sync(0xFFFFFFFFu, decay.x != 1.0f || decay.y != 1.0f)) {
#pragma unroll
        for (int j = 0; j < 32; ++j) o[j] *= j % 4 < 2 ? decay.x : decay.y;
      }
      multiply_values(o, high, low, ring.values());
      const uint32_t behind = ring.empty();
      if (t + 1 < tiles) {
        ring.advance();
        ptx::barrier_wait(ring.full(), ring.parity);
        multiply_keys(s, q, ring.keys());
        ptx::wgmma_wait<1>();
        warp_arrive(behind);
      }
      ptx::wgmma_wait<0>();
      pin(o);
      pin(s);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
    }
    write(o, sum);
  }
};

__global__ void __launch_bounds__(kThreads, 1) vision_attention_kernel(const __grid_constant__ Params w) {
  extern __shared__ uint8_t raw[];
  const Ring ring{.base = (ptx::shared_address(raw) + 1023u) & ~1023u};
  const int first = static_cast<int>(blockIdx.x) * kQueries, tiles = (w.p.rows + kKeys - 1) / kKeys;
  const int live = min(kConsumers, (w.p.rows - first + 63) / 64);  // warpgroups that have queries
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(ring.base + kBarriers + 8 * stage, 1);
      ptx::barrier_init(ring.base + kBarriers + 8 * (kStages + stage), 4 * static_cast<uint32_t>(live));
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;
  if (warpgroup == kConsumers) {
    ptx::fewer_registers<40>();
    if (threadIdx.x == 128 * kConsumers) produce(w, ring, tiles);
  } else {
    ptx::more_registers<152>();
    if (warpgroup >= live) return;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    Consumer{.w = w, .row = first + 64 * warpgroup + 16 * warp + lane / 4, .quad = lane % 4}.run(ring, tiles);
  }
}

}  // namespace

bool fits_vision_wgmma(const VisionAttentionParams& p) { return p.head_dim == kDim; }

void vision_attention_wgmma(CudaContext& context, const VisionAttentionParams& params) {
  Params w{};
  w.p = params;
  w.factor = params.scale * 1.44269504f;
  const int64_t width = int64_t{params.heads} * kDim;
  tensor_map(w.keys, params.turned, 2, params.rows, 2 * width, 4 * width, kKeys, kDim, BoxSwizzle::k128);
  tensor_map(w.values, params.qkv, 2, params.rows, 3 * width, 6 * width, kKeys, kDim, BoxSwizzle::k128);
  static const bool allowed = [] {
    MDI_CUDA(cudaFuncSetAttribute(vision_attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    return true;
  }();
  static_cast<void>(allowed);
  const dim3 blocks(static_cast<unsigned>((params.rows + kQueries - 1) / kQueries),
                    static_cast<unsigned>(params.heads));
  vision_attention_kernel<<<blocks, kThreads, kShared, context.stream>>>(w);
  MDI_CUDA_LAUNCHED(context,
                    "vision attention [" + std::to_string(params.rows) + ", " + std::to_string(params.heads) + ", 64]");
}

}  // namespace mdi::cuda
