// Sparse attention (spec 6.7) at any shape, for small models: a block of threads a query and eight of its heads, two
// heads a warp, on the ordinary cores. Keys pass through shared memory in blocks of 64 as bf16; a lane scores two keys
// of a block, then owns pairs of output channels. Not tuned, but in the oracle's order of sums: a score in 16 lanes and
// a tree, the weights one after the other.
#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/exact_math.cuh"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 4, kHeadsPerWarp = 2, kHeads = kWarps * kHeadsPerWarp, kKeys = 64;

// Rows of keys in shared memory, in words: an odd number of them, so that 32 rows lie in 32 banks.
__host__ __device__ inline int key_words(int dim) { return dim / 2 + 1; }
__host__ __device__ inline int shared_bytes(int dim) { return 4 * (kKeys * key_words(dim) + kHeads * dim); }

__device__ inline float warp_max(float v) {
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

// q . key of `dim` channels, as horizontal_sum of kernels/cpu/simd.h ends it. dim is a multiple of 16.
__device__ inline float score_of(const uint32_t* q, const uint32_t* key, int dim) {
  float lanes[16] = {};
  for (int w = 0; w < dim / 2; w += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t a = __ldg(q + w + i), b = key[w + i];
      lanes[2 * i] = __fmaf_rn(low_half(a), low_half(b), lanes[2 * i]);
      lanes[2 * i + 1] = __fmaf_rn(high_half(a), high_half(b), lanes[2 * i + 1]);
    }
  }
#pragma unroll
  for (int width = 8; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) lanes[i] = __fadd_rn(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

__device__ inline uint32_t expand_pair(const AttentionParams& p, KeyRow row, bool window, int e) {
  const uint8_t* scales = row.codes + row.scale_offset;
  if (window) {
    const float scale = e8m0_value(scales[e / 32]);
    return pack_bf16(e4m3_float({row.codes[e]}) * scale, e4m3_float({row.codes[e + 1]}) * scale);
  }
  const float scale = e4m3_float({scales[e / 16]});
  const uint32_t both = row.codes[e / 2];
  return pack_bf16(e2m1_value(both & 15u) * scale, e2m1_value(both >> 4) * scale);
}

__global__ void __launch_bounds__(kWarps * 32) attention_generic_kernel(AttentionParams p) {
  extern __shared__ uint32_t shared[];
  __shared__ KeyRow rows[kKeys];
  __shared__ uint32_t masks[2];
  const SparseAttentionArgs& a = p.args;
  const int dim = a.head_dim, words = key_words(dim);
  uint32_t* const keys = shared;
  float* const sums = reinterpret_cast<float*>(shared + kKeys * words);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = blockIdx.x;
  const int head0 = static_cast<int>(blockIdx.y) * kHeads + warp * kHeadsPerWarp;
  const QueryKeys query = query_keys(p, t);

  float largest[kHeadsPerWarp], denominator[kHeadsPerWarp];
  for (int h = 0; h < kHeadsPerWarp; ++h) {
    largest[h] = -1e30f;
    denominator[h] = 0;
    for (int d = lane; d < dim; d += 32) sums[(warp * kHeadsPerWarp + h) * dim + d] = 0;
  }
  for (int begin = 0; begin < p.slots; begin += kKeys) {
    __syncthreads();
    if (threadIdx.x < kKeys) {
      const KeyRow row = key_at(p, query, t, begin + static_cast<int>(threadIdx.x));
      rows[threadIdx.x] = row;
      const uint32_t mask = __ballot_sync(0xFFFFFFFFu, row.codes != nullptr);
      if (lane == 0) masks[warp] = mask;
    }
    __syncthreads();
    for (int r = warp; r < kKeys; r += kWarps) {
      const bool window = begin + r < a.ring.window || a.whole_block;
      for (int w = lane; w < dim / 2; w += 32) {
        keys[r * words + w] = rows[r].codes == nullptr ? 0u : expand_pair(p, rows[r], window, 2 * w);
      }
    }
    __syncthreads();
    if ((masks[0] | masks[1]) == 0) continue;
    for (int h = 0; h < kHeadsPerWarp && head0 + h < a.heads; ++h) {
      const auto* const q = reinterpret_cast<const uint32_t*>(a.q + (t * a.heads + head0 + h) * dim);
      float s0 = score_of(q, keys + lane * words, dim), s1 = score_of(q, keys + (lane + 32) * words, dim);
      s0 = (masks[0] >> lane & 1u) != 0 ? __fmul_rn(s0, a.scale) : -INFINITY;
      s1 = (masks[1] >> lane & 1u) != 0 ? __fmul_rn(s1, a.scale) : -INFINITY;
      const float before = largest[h];
      largest[h] = fmaxf(before, warp_max(fmaxf(s0, s1)));
      const float decay = exp_rounded(before - largest[h]);
      const float e0 = exp_rounded(s0 - largest[h]), e1 = exp_rounded(s1 - largest[h]);
      float block_sum = 0;
      for (int k = 0; k < kKeys; ++k) {
        block_sum = __fadd_rn(block_sum, __shfl_sync(0xFFFFFFFFu, k < 32 ? e0 : e1, k % 32));
      }
      denominator[h] = __fadd_rn(__fmul_rn(denominator[h], decay), block_sum);
      const float p0 = rounded(e0), p1 = rounded(e1);
      float* const sum = sums + (warp * kHeadsPerWarp + h) * dim;
      for (int first = 0; first < dim / 2; first += 32) {
        const int w = min(first + lane, dim / 2 - 1);  // all lanes take part in the shuffles
        float low = sum[2 * w] * decay, high = sum[2 * w + 1] * decay;
        for (int k = 0; k < kKeys; ++k) {
          const float weight = __shfl_sync(0xFFFFFFFFu, k < 32 ? p0 : p1, k % 32);
          const uint32_t value = keys[k * words + w];
          low = fmaf(weight, low_half(value), low);
          high = fmaf(weight, high_half(value), high);
        }
        __syncwarp();
        if (first + lane < dim / 2) {
          sum[2 * w] = low;
          sum[2 * w + 1] = high;
        }
        __syncwarp();
      }
    }
  }
  for (int h = 0; h < kHeadsPerWarp && head0 + h < a.heads; ++h) {
    const float total = __fadd_rn(denominator[h], exp_rounded(__fsub_rn(a.sink[head0 + h], largest[h])));
    const float* const sum = sums + (warp * kHeadsPerWarp + h) * dim;
    for (int d = lane; d < dim; d += 32) a.o[(t * a.heads + head0 + h) * dim + d] = narrow(__fdiv_rn(sum[d], total));
  }
}

}  // namespace

void attention_generic(CudaContext& context, const AttentionParams& p) {
  const int bytes = shared_bytes(p.args.head_dim);
  constexpr int kMostBytes = 200 * 1024;
  if (bytes > kMostBytes || p.args.head_dim % 32 != 0) {
    throw Error("cuda sparse_attention",
                "heads of " + std::to_string(p.args.head_dim) + " values: expected a multiple of 32, at most 1024");
  }
  static const bool allowed = [] {
    MDI_CUDA(cudaFuncSetAttribute(attention_generic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
    return true;
  }();
  static_cast<void>(allowed);
  const dim3 grid(static_cast<unsigned>(p.step.rows), static_cast<unsigned>((p.args.heads + kHeads - 1) / kHeads));
  attention_generic_kernel<<<grid, kWarps * 32, static_cast<size_t>(bytes), context.stream>>>(p);
  MDI_CUDA_LAUNCHED(context, "attention [" + std::to_string(p.step.rows) + ", " + std::to_string(p.args.heads) + ", " +
                                 std::to_string(p.args.head_dim) + "]");
}

}  // namespace mdi::cuda
