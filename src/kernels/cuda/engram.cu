// The engram's stages (spec engram.md 4, 5).
//
// engram at 4,096 rows of the released shape: lookup gathers 26 MB and writes 50 MB; the product reads them; the gate
// reads kv (210 MB), reads and writes h (336 MB): 128 us at 4,267 GB/s. The lookup applies the product's act_quant
// (looked-up values are exact in bf16, and their blocks of 32 are the product's), so that E is written once.
#include "kernels/cuda/exact_math.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kSmallDim = 1024;    // below, the oracle's order of sums
constexpr int kGateThreads = 640;  // eight channels of 5,120 a thread

__global__ void __launch_bounds__(kThreads) engram_hash_kernel(StepView step, EngramHashArgs a) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t t = at / a.heads;
  if (t >= step.rows) return;
  const int head = static_cast<int>(at % a.heads);
  const int32_t s = step.seq_of_row[t];
  const int64_t first = step.seq_row[s];
  const int32_t* history = a.history + int64_t{step.seq_slot[s]} * (a.ngram - 1);
  const int columns = (a.ngram - 1) * a.heads;
  int64_t x = 0;
  bool blocked = false;
  for (int j = 0; j < a.ngram; ++j) {
    // Blocked for good at the first token that is dead or before the start; what lies behind it is not read.
    int32_t id = -1;
    if (!blocked) {
      const int64_t row = t - j;
      if (row >= first) {
        id = step.dead[row] != 0 ? -1 : a.token_map[step.token[row]];
      } else {
        id = history[first - row - 1];
      }
    }
    if (j == 0 && head == 0) a.compressed[t] = id;
    blocked = blocked || id < 0;
    x ^= int64_t{blocked ? a.pad : id} * a.multipliers[j];
    if (j == 0) continue;
    const int column = (j - 1) * a.heads + head;
    a.rows[t * columns + column] = x % a.primes[column] + a.offsets[column];
  }
}

// A thread eight codes; four neighbours share a block of 32. e = act_quant_dequant(codes * scale).
__global__ void __launch_bounds__(kThreads) engram_lookup_kernel(int64_t rows, EngramArgs a, bf16* e) {
  const int64_t width = int64_t{a.columns} * a.head_dim;
  const int64_t chunks = width / 8;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool active = at < rows * chunks;
  const int64_t t = active ? at / chunks : 0;
  const int64_t i = active ? at % chunks * 8 : 0;
  uint32_t words[4] = {};
  if (active) {
    const int64_t row = a.rows[t * a.columns + i / a.head_dim];
    const int64_t within = i % a.head_dim;
    const uint2 codes = *reinterpret_cast<const uint2*>(a.table + row * a.head_dim + within);
    const float scale = e8m0_value(a.table_scale[row * (a.head_dim / 32) + within / 32].bits);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t word = k < 2 ? codes.x : codes.y;
      const float2 v = e4m3_values(word >> (16 * (k % 2)) & 0xFFFFu);
      words[k] = pack_bf16(v.x * scale, v.y * scale);
    }
  }
  const uint4 value{words[0], words[1], words[2], words[3]};
  const uint32_t byte = scale_byte(group_max(magnitude_max(value), 4), kActFloor, kInverse448);
  if (!active) return;
  uint4 out{0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u};
  if (byte != 255) {
    const float inverse = e8m0_inverse(byte), scale = e8m0_value(byte);
    const auto rounded_pair = [&](uint32_t pair) {
      const float2 v = e4m3_values(e4m3_codes(low_half(pair) * inverse, high_half(pair) * inverse));
      return pack_bf16(v.x * scale, v.y * scale);
    };
    out = {rounded_pair(value.x), rounded_pair(value.y), rounded_pair(value.z), rounded_pair(value.w)};
  }
  *reinterpret_cast<uint4*>(e + t * width + i) = out;
}

__device__ float warp_sum(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
  return v;
}

// Three sums over the block, to every thread; the order does not depend on anything but the block's size.
__device__ float3 block_sums(float3 v, float3* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  v = {warp_sum(v.x), warp_sum(v.y), warp_sum(v.z)};
  __syncthreads();  // the last call's scratch has been read
  if (threadIdx.x % 32 == 0) scratch[warp] = v;
  __syncthreads();
  float3 sum{0, 0, 0};
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    sum.x += scratch[w].x;
    sum.y += scratch[w].y;
    sum.z += scratch[w].z;
  }
  return sum;
}

// A block a row, copy after copy. The second pass finds h in L1.
__global__ void __launch_bounds__(kGateThreads) engram_gate_kernel(const uint8_t* dead, EngramArgs a, const bf16* kv) {
  __shared__ float3 scratch[kGateThreads / 32];
  const int64_t t = blockIdx.x;
  if (dead[t] != 0) return;
  const int64_t dim = a.dim;
  const bf16* row = kv + t * (a.hc + 1) * dim;
  const bf16* value = row + a.hc * dim;
  const auto n = static_cast<float>(a.dim);
  const int first = 2 * static_cast<int>(threadIdx.x), stride = 2 * static_cast<int>(blockDim.x);
  const auto word = [](const bf16* p) { return *reinterpret_cast<const uint32_t*>(p); };
  for (int j = 0; j < a.hc; ++j) {
    bf16* stream = a.h + (t * a.hc + j) * dim;
    const bf16 *key = row + j * dim, *qw = a.q_weight + j * dim, *kw = a.k_weight + j * dim;
    float3 sum{0, 0, 0};
#pragma unroll 4
    for (int i = first; i < a.dim; i += stride) {
      const uint32_t h = word(stream + i), k = word(key + i), q = word(qw + i), w = word(kw + i);
      sum.x += low_half(h) * (low_half(q) * low_half(w)) * low_half(k);
      sum.x += high_half(h) * (high_half(q) * high_half(w)) * high_half(k);
      sum.y += low_half(h) * low_half(h) + high_half(h) * high_half(h);
      sum.z += low_half(k) * low_half(k) + high_half(k) * high_half(k);
    }
    sum = block_sums(sum, scratch);
    const float stream_rms = inverse_rms(sum.y, a.dim, a.eps), key_rms = inverse_rms(sum.z, a.dim, a.eps);
    const float d = sum.x * (stream_rms * key_rms) * __fdiv_rn(1.0f, __fsqrt_rn(n));
    const float gate = __fdiv_rn(1.0f, 1.0f + expf(-copysignf(__fsqrt_rn(fmaxf(fabsf(d), 1e-6f)), d)));
#pragma unroll 4
    for (int i = first; i < a.dim; i += stride) {
      const uint32_t h = word(stream + i), v = word(value + i);
      *reinterpret_cast<uint32_t*>(stream + i) = pack_bf16(__fadd_rn(low_half(h), __fmul_rn(gate, low_half(v))),
                                                           __fadd_rn(high_half(h), __fmul_rn(gate, high_half(v))));
    }
  }
}

// The same for small models, in the oracle's order of sums: a warp a copy.
__global__ void __launch_bounds__(kThreads)
    engram_gate_small_kernel(const uint8_t* dead, EngramArgs a, const bf16* kv) {
  const int64_t t = blockIdx.x, dim = a.dim, j = threadIdx.x / 32;
  if (dead[t] != 0) return;
  const bf16* key = kv + (t * (a.hc + 1) + j) * dim;
  const bf16* value = kv + (t * (a.hc + 1) + a.hc) * dim;
  const bf16 *qw = a.q_weight + j * dim, *kw = a.k_weight + j * dim;
  bf16* stream = a.h + (t * a.hc + j) * dim;
  const float dot = sum_of_16_lanes(dim, [&](int64_t i) {
    return __fmul_rn(__fmul_rn(widen(stream[i]), __fmul_rn(widen(qw[i]), widen(kw[i]))), widen(key[i]));
  });
  const float stream_squares =
      sum_of_16_lanes(dim, [&](int64_t i) { return __fmul_rn(widen(stream[i]), widen(stream[i])); });
  const float key_squares = sum_of_16_lanes(dim, [&](int64_t i) { return __fmul_rn(widen(key[i]), widen(key[i])); });
  const float both = __fmul_rn(inverse_rms(stream_squares, dim, a.eps), inverse_rms(key_squares, dim, a.eps));
  const float root = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(a.dim)));
  const float d = __fmul_rn(__fmul_rn(dot, both), root);
  const float depth = -copysignf(__fsqrt_rn(fmaxf(fabsf(d), 1e-6f)), d);
  const float gate = __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_rounded(depth)));
  for (int64_t i = threadIdx.x % 32; i < dim; i += 32) {
    stream[i] = narrow(__fadd_rn(widen(stream[i]), __fmul_rn(gate, widen(value[i]))));
  }
}

__global__ void __launch_bounds__(kThreads) commit_history_kernel(StepView step, CommitHistoryArgs a) {
  const int s = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (s >= step.sequences) return;
  int32_t* history = a.history + int64_t{step.seq_slot[s]} * a.depth;
  const int32_t accepted = a.accepted[s];
  for (int i = a.depth - 1; i >= 0; --i) {
    history[i] = i < accepted ? a.compressed[step.seq_row[s] + accepted - 1 - i] : history[i - accepted];
  }
}

}  // namespace

void engram_hash(Context& base, const StepView& step, const EngramHashArgs& args) {
  CudaContext& context = cuda(base);
  if (step.rows == 0) return;
  const int64_t items = int64_t{step.rows} * args.heads;
  engram_hash_kernel<<<static_cast<unsigned>((items + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(step,
                                                                                                                args);
  MDI_CUDA_LAUNCHED(context, "engram_hash [" + std::to_string(step.rows) + "]");
}

void engram(Context& base, const StepView& step, const EngramArgs& args) {
  CudaContext& context = cuda(base);
  if (step.rows == 0) return;
  if (args.head_dim % 32 != 0 || args.dim % 2 != 0) {
    throw Error("cuda engram", "heads of " + std::to_string(args.head_dim) + " values and rows of " +
                                   std::to_string(args.dim) + " do not fit its loads");
  }
  const int64_t width = int64_t{args.columns} * args.head_dim;
  const int64_t out = int64_t{args.hc + 1} * args.dim;
  const WorkspaceScope scope(context);
  auto* e = context.workspace.take<bf16>(step.rows * width, "engram lookups");
  auto* kv = context.workspace.take<bf16>(step.rows * out, "engram keys and values");
  const std::string shape = " [" + std::to_string(step.rows) + ", " + std::to_string(width) + "]";
  const int64_t chunks = step.rows * width / 8;
  engram_lookup_kernel<<<static_cast<unsigned>((chunks + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(
      step.rows, args, e);
  MDI_CUDA_LAUNCHED(context, "engram_lookup" + shape);
  linear_quantised(context, e, step.rows, width, args.wkv, kv, nullptr, out);
  if (args.dim < kSmallDim && args.hc * 32 <= kThreads) {
    engram_gate_small_kernel<<<static_cast<unsigned>(step.rows), static_cast<unsigned>(args.hc * 32), 0,
                               context.stream>>>(step.dead, args, kv);
  } else {
    engram_gate_kernel<<<static_cast<unsigned>(step.rows), kGateThreads, 0, context.stream>>>(step.dead, args, kv);
  }
  MDI_CUDA_LAUNCHED(context, "engram_gate" + shape);
}

void commit_history(Context& base, const StepView& step, const CommitHistoryArgs& args) {
  CudaContext& context = cuda(base);
  if (step.sequences == 0) return;
  commit_history_kernel<<<static_cast<unsigned>((step.sequences + kThreads - 1) / kThreads), kThreads, 0,
                          context.stream>>>(step, args);
  MDI_CUDA_LAUNCHED(context, "commit_history [" + std::to_string(step.sequences) + "]");
}

}  // namespace mdi::cuda
