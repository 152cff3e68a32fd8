// hc_collapse (spec 5.3, 5.4): the mixes of the stream, its collapse with the carried mix, RMSNorm.
//
// 4,096 rows of 4 x 5,120: reads h once (168 MB), writes x (42 MB): 49 us at 4,267 GB/s; the products with fn are
// 4 GFLOP. Measured on one H200: 121 us, 41% (hc_partials 88, waiting for memory with too few bytes on their way;
// hc_finish 28, half of it L2 traffic); 10 us at 64 rows. Two kernels, because a row's 20,480 products are
// split over 16 blocks:
//  - hc_partials: a block takes a sixteenth of the channels (320 of all four copies) and holds that part of fn in
//  shared
//    memory, as the B fragments of m16n8k16: fn = high + low in bf16, whose products with the bf16 stream are exact, so
//    that the sums err like sums in fp32 (2^-18 a term). A warp takes 16 rows: 16 bytes of each copy a thread, straight
//    from global memory into A fragments (the order of k inside a fragment is ours to choose: both sides take eight
//    neighbours a thread). The same registers give the collapsed row and the sum of squares.
//  - hc_finish: a block a row. One warp adds the sixteen partial sums and runs Sinkhorn on 16 lanes, four normalise.
// Order of a row's sums, whatever the number of rows: units of two steps (64 channels), units in order, parts in order.
// With few rows the units of a part are spread over warps; with many one warp adds them.
#include <algorithm>

#include "kernels/cuda/hc.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kCopies = 4;
constexpr int kMixes = 24;
constexpr int kParts = 16;         // of the channels
constexpr int kStep = 32;          // channels a step
constexpr int kUnit = 2;           // steps a unit
constexpr int kMaxSteps = 12;      // of a part: 12 KB of fn each
constexpr int kPartialWidth = 26;  // 24 products, the sum of squares, one unused for alignment
constexpr int kWarps = 16;
constexpr int kRows = 16;     // of a warp
constexpr int kFewRows = 64;  // of a block, at most, when units are spread over warps
constexpr int kManyRows = 512;
constexpr int kSmallDim = 1024;      // below: hc_plain.cu, in the oracle's order; its time does not matter there
constexpr int64_t kFewLimit = 1024;  // up to here, more blocks matter more than reading fn once
constexpr int kStepVectors = kCopies * 3 * 2 * 32;  // uint4 of B fragments a step

struct Collapse {
  const bf16* h;
  const float* pre;
  const float* fn;
  int64_t rows;
  int32_t dim, steps;  // steps a part
  int32_t few_rows;    // of a block when units are spread over warps
  bf16* x;
  float* partial;  // [rows, kParts, kPartialWidth]
};

__device__ void mma_16816(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// This part of fn as fragments: vector ((step * copies + copy) * 3 + tile) * 2 + {high, low}, then a uint4 a thread:
// eight values of k for mix 8 * tile + lane / 4.
__device__ void load_fragments(const Collapse& a, int first_step, int steps, uint4* fragments) {
  const int items = steps * kCopies * 3 * 32;
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < items; item += kWarps * 32) {
    const int lane = item % 32;
    const int tile = item / 32 % 3;
    const int copy = item / 96 % kCopies;
    const int step = item / (96 * kCopies);
    const int64_t channel = int64_t{first_step + step} * kStep + 8 * (lane % 4);
    const float* from = a.fn + (int64_t{8 * tile + lane / 4} * kCopies + copy) * a.dim + channel;
    const float4 v0 = __ldg(reinterpret_cast<const float4*>(from));
    const float4 v1 = __ldg(reinterpret_cast<const float4*>(from + 4));
    const float v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
      low[i] = pack_bf16(v[2 * i] - low_half(high[i]), v[2 * i + 1] - high_half(high[i]));
    }
    uint4* to = fragments + (((step * kCopies + copy) * 3 + tile) * 2) * 32 + lane;
    to[0] = uint4{high[0], high[1], high[2], high[3]};
    to[32] = uint4{low[0], low[1], low[2], low[3]};
  }
}

// Sums of 16 rows: products in C fragments, squares of rows lane / 4 and lane / 4 + 8 over this thread's channels.
struct Sums {
  float products[3][4];
  float squares[2];
};

__device__ void clear(Sums& s) {
  for (auto& tile : s.products) {
    for (float& v : tile) v = 0;
  }
  s.squares[0] = s.squares[1] = 0;
}

__device__ void add(Sums& to, const Sums& s) {
  for (int n = 0; n < 3; ++n) {
    for (int i = 0; i < 4; ++i) to.products[n][i] = __fadd_rn(to.products[n][i], s.products[n][i]);
  }
  for (int i = 0; i < 2; ++i) to.squares[i] = __fadd_rn(to.squares[i], s.squares[i]);
}

// hc_pre of eight channels: copies in order, every product and sum rounded like the oracle's.
__device__ uint4 collapse_eight(const uint4 (&h)[kCopies], const float (&pre)[kCopies]) {
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low = 0, high = 0;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      const uint32_t pair = i == 0 ? h[c].x : i == 1 ? h[c].y : i == 2 ? h[c].z : h[c].w;
      low = __fadd_rn(low, __fmul_rn(pre[c], low_half(pair)));
      high = __fadd_rn(high, __fmul_rn(pre[c], high_half(pair)));
    }
    out[i] = pack_bf16(low, high);
  }
  return {out[0], out[1], out[2], out[3]};
}

__device__ float squares_of(uint4 v, float sum) {
  for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
    sum = fmaf(low_half(pair), low_half(pair), sum);
    sum = fmaf(high_half(pair), high_half(pair), sum);
  }
  return sum;
}

// One warp: 16 rows from `row` on, steps [begin, end) of this part.
__device__ void accumulate(const Collapse& a, const uint4* fragments, int64_t row, int first_step, int begin, int end,
                           Sums& sums) {
  const int lane = threadIdx.x % 32;
  const int64_t row0 = row + lane / 4, row1 = row0 + 8;
  const int64_t safe0 = min(row0, a.rows - 1), safe1 = min(row1, a.rows - 1);
  float pre0[kCopies], pre1[kCopies];
#pragma unroll
  for (int c = 0; c < kCopies; ++c) {
    pre0[c] = a.pre[safe0 * kCopies + c];
    pre1[c] = a.pre[safe1 * kCopies + c];
  }
  for (int step = begin; step < end; ++step) {
    const int64_t channel = int64_t{first_step + step} * kStep + 8 * (lane % 4);
    uint4 h0[kCopies], h1[kCopies];
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      h0[c] = *reinterpret_cast<const uint4*>(a.h + (safe0 * kCopies + c) * a.dim + channel);
      h1[c] = *reinterpret_cast<const uint4*>(a.h + (safe1 * kCopies + c) * a.dim + channel);
    }
    const uint4* at = fragments + step * kStepVectors + lane;
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      // A sum's products wait for one another; the three sums take turns.
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint4 b[3];
#pragma unroll
        for (int tile = 0; tile < 3; ++tile) b[tile] = at[((c * 3 + tile) * 2 + part) * 32];
#pragma unroll
        for (int tile = 0; tile < 3; ++tile) {
          mma_16816(sums.products[tile], h0[c].x, h1[c].x, h0[c].y, h1[c].y, b[tile].x, b[tile].y);
        }
#pragma unroll
        for (int tile = 0; tile < 3; ++tile) {
          mma_16816(sums.products[tile], h0[c].z, h1[c].z, h0[c].w, h1[c].w, b[tile].z, b[tile].w);
        }
      }
      sums.squares[0] = squares_of(h0[c], sums.squares[0]);
      sums.squares[1] = squares_of(h1[c], sums.squares[1]);
    }
    if (row0 < a.rows) *reinterpret_cast<uint4*>(a.x + row0 * a.dim + channel) = collapse_eight(h0, pre0);
    if (row1 < a.rows) *reinterpret_cast<uint4*>(a.x + row1 * a.dim + channel) = collapse_eight(h1, pre1);
  }
}

__device__ void store_partials(const Collapse& a, int64_t row, int part, Sums& sums) {
  const int lane = threadIdx.x % 32;
  for (float& s : sums.squares) {
    s = __fadd_rn(s, __shfl_xor_sync(0xFFFFFFFFu, s, 1));
    s = __fadd_rn(s, __shfl_xor_sync(0xFFFFFFFFu, s, 2));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = row + lane / 4 + 8 * half;
    if (at >= a.rows) continue;
    float* out = a.partial + (at * kParts + part) * kPartialWidth;
#pragma unroll
    for (int tile = 0; tile < 3; ++tile) {
      *reinterpret_cast<float2*>(out + 8 * tile + 2 * (lane % 4)) =
          float2{sums.products[tile][2 * half], sums.products[tile][2 * half + 1]};
    }
    if (lane % 4 == 0) out[kMixes] = sums.squares[half];
  }
}

// Many rows: a warp adds the units of its 16 rows itself. Few: the units of 16 rows go to warps, and their sums meet in
// shared memory.
template <bool kMany>
__global__ void __launch_bounds__(kWarps * 32, 1) hc_partials(Collapse a) {
  extern __shared__ uint4 fragments[];
  const int part = static_cast<int>(blockIdx.y);
  const int first_step = part * a.steps;
  const int steps = max(0, min(a.steps, a.dim / kStep - first_step));
  ptx::let_next_start();
  load_fragments(a, first_step, steps, fragments);
  ptx::wait_for_earlier();
  __syncthreads();
  const int units = (steps + kUnit - 1) / kUnit;
  const int64_t block_row = int64_t{blockIdx.x} * (kMany ? kManyRows : a.few_rows);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if constexpr (kMany) {
    const int64_t end = min(block_row + kManyRows, a.rows);
    for (int64_t row = block_row + warp * kRows; row < end; row += kWarps * kRows) {
      Sums total;
      clear(total);
      for (int unit = 0; unit < units; ++unit) {
        Sums sums;
        clear(sums);
        accumulate(a, fragments, row, first_step, unit * kUnit, min((unit + 1) * kUnit, steps), sums);
        add(total, sums);
      }
      store_partials(a, row, part, total);
    }
  } else {
    auto* shared_sums = reinterpret_cast<Sums*>(fragments + a.steps * kStepVectors);  // [tiles, units, 32]
    const int tiles = static_cast<int>(min(int64_t{a.few_rows}, a.rows - block_row) + kRows - 1) / kRows;
    for (int item = warp; item < tiles * units; item += kWarps) {
      const int unit = item % units;
      Sums sums;
      clear(sums);
      accumulate(a, fragments, block_row + item / units * kRows, first_step, unit * kUnit,
                 min((unit + 1) * kUnit, steps), sums);
      shared_sums[item * 32 + lane] = sums;
    }
    __syncthreads();
    for (int tile = warp; tile < tiles; tile += kWarps) {
      Sums total;
      clear(total);
      for (int unit = 0; unit < units; ++unit) add(total, shared_sums[(tile * units + unit) * 32 + lane]);
      store_partials(a, block_row + tile * kRows, part, total);
    }
  }
}

// ---- the second kernel ----------------------------------------------------------------------------------------------

struct Finish {
  HcWeights weights;
  const bf16* norm;
  const float* partial;
  int64_t rows;
  int32_t dim, iterations;
  float eps, norm_eps;
  bf16* x;
  float *pre, *post, *comb;
};

__device__ float sigmoid(float v) { return __fdiv_rn(1.0f, 1.0f + expf(-v)); }

// The four values v of lanes first, first + stride, ... added in order.
__device__ float sum_of_four(float v, int first, int stride) {
  const float v0 = __shfl_sync(0xFFFFFFFFu, v, first), v1 = __shfl_sync(0xFFFFFFFFu, v, first + stride);
  const float v2 = __shfl_sync(0xFFFFFFFFu, v, first + 2 * stride),
              v3 = __shfl_sync(0xFFFFFFFFu, v, first + 3 * stride);
  return ((v0 + v1) + v2) + v3;
}

__device__ void mixes_of_row(const Finish& a, int64_t row, int lane) {
  // Lane i < 24 adds product i over the parts, lane 24 the squares.
  const float* partial = a.partial + row * kParts * kPartialWidth;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) sum += partial[part * kPartialWidth + min(lane, kMixes)];
  const float r = inverse_rms(__shfl_sync(0xFFFFFFFFu, sum, kMixes), int64_t{kCopies} * a.dim, a.norm_eps);
  const int kind = lane < 4 ? 0 : lane < 8 ? 1 : 2;
  const float mix = sum * r * a.weights.scale[kind] + a.weights.base[min(lane, kMixes - 1)];
  if (lane < 4) a.pre[row * kCopies + lane] = sigmoid(mix) + a.eps;
  if (lane >= 4 && lane < 8) a.post[row * kCopies + lane - 4] = 2.0f * sigmoid(mix);

  // Lane 4 i + k of each half warp holds C[i][k].
  const int i4 = lane % 16 / 4 * 4, k = lane % 4;
  float c = __shfl_sync(0xFFFFFFFFu, mix, 8 + lane % 16);
  float largest = fmaxf(c, __shfl_xor_sync(0xFFFFFFFFu, c, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
  c = expf(c - largest);
  c = __fdiv_rn(c, sum_of_four(c, i4, 1)) + a.eps;
  c = __fdiv_rn(c, sum_of_four(c, k, 4) + a.eps);
  for (int n = 1; n < a.iterations; ++n) {
    c = __fdiv_rn(c, sum_of_four(c, i4, 1) + a.eps);
    c = __fdiv_rn(c, sum_of_four(c, k, 4) + a.eps);
  }
  if (lane < 16) a.comb[row * 16 + lane] = c;
}

constexpr int kNormThreads = 128;
constexpr int kNormVectors = kMaxSteps * kParts * kStep / (8 * kNormThreads);

// A block a row: four warps normalise it, the fifth makes its mixes.
__global__ void __launch_bounds__(kNormThreads + 32) hc_finish(Finish a) {
  extern __shared__ uint4 shared_row[];
  __shared__ float shared_rms;
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  auto* shared = reinterpret_cast<bf16*>(shared_row);
  ptx::let_next_start();
  ptx::wait_for_earlier();
  bf16* x = a.x + row * a.dim;
  if (thread >= kNormThreads) {
    mixes_of_row(a, row, thread - kNormThreads);
    return;
  }
  const auto barrier = [] { asm volatile("bar.sync 1, %0;" ::"n"(kNormThreads) : "memory"); };
  uint4 v[kNormVectors];
  load_row<kNormThreads>(x, a.dim, thread, v, shared);
  barrier();
  if (thread < 32) {
    const float r = shared_inverse_rms(shared, a.dim, a.norm_eps, thread);
    if (thread == 0) shared_rms = r;
  }
  barrier();
  const float r = shared_rms;
#pragma unroll
  for (int k = 0; k < kNormVectors; ++k) {
    const int e = 8 * (thread + k * kNormThreads);
    if (e >= a.dim) continue;
    *reinterpret_cast<uint4*>(x + e) = normalised(v[k], *reinterpret_cast<const uint4*>(a.norm + e), r);
  }
}

template <bool kMany>
void launch_partials(CudaContext& context, const Collapse& a) {
  const int units = (a.steps + kUnit - 1) / kUnit;
  const size_t fragments = static_cast<size_t>(a.steps) * kStepVectors * sizeof(uint4);
  const size_t sums = kMany ? 0 : static_cast<size_t>(a.few_rows / kRows * units) * 32 * sizeof(Sums);
  const int64_t block_rows = kMany ? kManyRows : a.few_rows;
  const dim3 grid(static_cast<unsigned>((a.rows + block_rows - 1) / block_rows), kParts);
  const auto bytes = static_cast<int>(fragments + sums);
  MDI_CUDA(cudaFuncSetAttribute(hc_partials<kMany>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launch_early(context, hc_partials<kMany>, grid, kWarps * 32, fragments + sums, 1, a);
}

}  // namespace

void hc_collapse(Context& base, const StepView& step, const HcCollapseArgs& args) {
  CudaContext& context = cuda(base);
  if (step.rows == 0) return;
  const int32_t steps = (args.dim / kStep + kParts - 1) / kParts;
  if (args.hc != kCopies || args.dim % kStep != 0 || steps > kMaxSteps || args.dim < kSmallDim) {
    hc_collapse_plain(context, step.rows, args);
    return;
  }
  const WorkspaceScope scope(context);
  auto* partial = context.workspace.take<float>(int64_t{step.rows} * kParts * kPartialWidth, "hc_collapse");
  // As many blocks as multiprocessors, but no more: each reads its part of fn.
  const int32_t few_rows = step.rows <= kFewRows * 4 ? kFewRows / 2 : kFewRows;
  const Collapse a{args.h, args.pre_in, args.weights.fn, step.rows, args.dim, steps, few_rows, args.x, partial};
  const std::string shape = " [" + std::to_string(step.rows) + ", 4, " + std::to_string(args.dim) + "]";
  if (step.rows > kFewLimit) {
    launch_partials<true>(context, a);
  } else {
    launch_partials<false>(context, a);
  }
  MDI_CUDA_LAUNCHED(context, "hc_partials" + shape);
  const Finish finish{args.weights, args.norm,     partial, step.rows,    args.dim,  args.sinkhorn_iters,
                      args.eps,     args.norm_eps, args.x,  args.pre_out, args.post, args.comb};
  launch_early(context, hc_finish, static_cast<unsigned>(step.rows), kNormThreads + 32,
               static_cast<size_t>(args.dim) * sizeof(bf16), 1, finish);
  MDI_CUDA_LAUNCHED(context, "hc_finish" + shape);
}

}  // namespace mdi::cuda
