// vision_attention of ops.h: the rotation of q and k, which kernel attends, and the plain one for any head.
//
// The rotation goes to memory once (9,216 patches: 38 MB read, 38 written, 18 us of a layer that takes milliseconds):
// the tensor cores read q and k as operands, and every tile of queries reads all keys.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/stages.h"
#include "kernels/cuda/vision.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPerLane = 8;  // channels of a head that a lane of the plain kernel holds

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

// cos and sin of every row's and every column's angles: [count, pairs].
__global__ void __launch_bounds__(kThreads) vision_angles_kernel(RopeTable rope, int64_t count, float2* table) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, pairs = rope.rope_dim / 2;
  if (at < count * pairs) table[at] = rope_angle(static_cast<int32_t>(at / pairs), rope.inv_freq[at % pairs]);
}

struct Turn {
  int64_t rows;
  int32_t columns, heads, head_dim;
  const bf16* qkv;
  const float2* table;
  bf16* out;  // [rows, 2, heads, head_dim]
};

// A thread turns two neighbouring pairs (i, half + i) of q or k. head_dim is a multiple of 4.
__global__ void __launch_bounds__(kThreads) vision_turn_kernel(Turn a) {
  const int64_t half = a.head_dim / 2, items = half / 2, heads = 2 * int64_t{a.heads};
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= a.rows * heads * items) return;
  const int64_t i = at % items * 2, head = at / items % heads, row = at / items / heads;
  const bf16* x = a.qkv + row * 3 * a.heads * a.head_dim + head * a.head_dim + i;
  bf16* y = a.out + (row * heads + head) * a.head_dim + i;
  const int64_t quarter = half / 2;
  const auto angle = [&](int64_t pair) {
    const int64_t position = pair < quarter ? row / a.columns : row % a.columns;
    return a.table[position * quarter + (pair < quarter ? pair : pair - quarter)];
  };
  const uint32_t first = *reinterpret_cast<const uint32_t*>(x), second = *reinterpret_cast<const uint32_t*>(x + half);
  const float2 s = angle(i), t = angle(i + 1);
  const auto turned_first = [](float p, float q, float2 v) { return __fsub_rn(__fmul_rn(p, v.x), __fmul_rn(q, v.y)); };
  const auto turned_second = [](float p, float q, float2 v) { return __fadd_rn(__fmul_rn(q, v.x), __fmul_rn(p, v.y)); };
  *reinterpret_cast<uint32_t*>(y) = pack_bf16(turned_first(low_half(first), low_half(second), s),
                                              turned_first(high_half(first), high_half(second), t));
  *reinterpret_cast<uint32_t*>(y + half) = pack_bf16(turned_second(low_half(first), low_half(second), s),
                                                     turned_second(high_half(first), high_half(second), t));
}

// A warp a query and head: 32 keys at a time, a lane the score of one of them, then a lane some channels of the sum.
__global__ void __launch_bounds__(kThreads) vision_attention_plain_kernel(VisionAttentionParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t unit = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (unit >= int64_t{p.rows} * p.heads) return;
  const int64_t row = unit / p.heads, head = unit % p.heads, dim = p.head_dim;
  const bf16* q = p.turned + (row * 2 * p.heads + head) * dim;
  const bf16* keys = p.turned + (p.heads + head) * dim;
  const bf16* values = p.qkv + (2 * p.heads + head) * dim;
  const int64_t key_stride = 2 * p.heads * dim, value_stride = 3 * p.heads * dim;
  float o[kMaxPerLane] = {};
  float largest = -INFINITY, total = 0;
  for (int64_t begin = 0; begin < p.rows; begin += 32) {
    const int live = static_cast<int>(min(int64_t{32}, p.rows - begin));
    float score = -INFINITY;
    if (lane < live) {
      const bf16* k = keys + (begin + lane) * key_stride;
      float sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum = __fmaf_rn(widen(q[d]), widen(k[d]), sum);
      score = __fmul_rn(sum, p.scale);
    }
    float top = score;
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
    top = fmaxf(top, largest);
    const float decay = expf(largest - top), weight = lane < live ? expf(score - top) : 0.0f;
    largest = top;
    float part = weight;
    for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xFFFFFFFFu, part, step);
    total = total * decay + part;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) o[i] *= decay;
    for (int j = 0; j < live; ++j) {
      const float w = __shfl_sync(0xFFFFFFFFu, weight, j);
      const bf16* v = values + (begin + j) * value_stride;
#pragma unroll
      for (int i = 0; i < kMaxPerLane; ++i) {
        if (lane + 32 * i < dim) o[i] = __fmaf_rn(w, widen(v[lane + 32 * i]), o[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (lane + 32 * i < dim) p.o[unit * dim + lane + 32 * i] = narrow(__fdiv_rn(o[i], total));
  }
}

}  // namespace

void vision_attention_plain(CudaContext& context, const VisionAttentionParams& params) {
  const int64_t units = int64_t{params.rows} * params.heads;
  vision_attention_plain_kernel<<<blocks_for(units * 32), kThreads, 0, context.stream>>>(params);
  MDI_CUDA_LAUNCHED(context, "vision attention, plain [" + std::to_string(params.rows) + ", " +
                                 std::to_string(params.heads) + ", " + std::to_string(params.head_dim) + "]");
}

void vision_attention(Context& base, const VisionAttentionArgs& args) {
  CudaContext& context = cuda(base);
  if (args.rows == 0) return;
  if (args.head_dim % 4 != 0 || args.head_dim > 32 * kMaxPerLane || args.rope.rope_dim * 2 != args.head_dim) {
    throw Error("cuda vision_attention",
                "expected heads of a multiple of 4 and at most 256 values, turned whole; found " +
                    std::to_string(args.head_dim) + " with a rope of " + std::to_string(args.rope.rope_dim));
  }
  const WorkspaceScope scope(context);
  const int64_t count = std::max<int64_t>(args.columns, (args.rows + args.columns - 1) / args.columns);
  const int64_t pairs = args.rope.rope_dim / 2, width = int64_t{2} * args.heads * args.head_dim;
  auto* table = context.workspace.take<float2>(count * pairs, "angles of an image");
  auto* turned = context.workspace.take<bf16>(args.rows * width, "queries and keys of an image");
  const std::string shape =
      " [" + std::to_string(args.rows) + ", " + std::to_string(args.heads) + ", " + std::to_string(args.head_dim) + "]";
  vision_angles_kernel<<<blocks_for(count * pairs), kThreads, 0, context.stream>>>(args.rope, count, table);
  MDI_CUDA_LAUNCHED(context, "vision angles" + shape);
  const Turn turn{.rows = args.rows,
                  .columns = args.columns,
                  .heads = args.heads,
                  .head_dim = args.head_dim,
                  .qkv = args.qkv,
                  .table = table,
                  .out = turned};
  vision_turn_kernel<<<blocks_for(args.rows * width / 4), kThreads, 0, context.stream>>>(turn);
  MDI_CUDA_LAUNCHED(context, "vision turn" + shape);
  const VisionAttentionParams params{.rows = static_cast<int32_t>(args.rows),
                                     .heads = args.heads,
                                     .head_dim = args.head_dim,
                                     .scale = static_cast<float>(std::pow(static_cast<double>(args.head_dim), -0.5)),
                                     .turned = turned,
                                     .qkv = args.qkv,
                                     .o = args.o};
  if (fits_vision_wgmma(params)) {
    vision_attention_wgmma(context, params);
  } else {
    vision_attention_plain(context, params);
  }
}

}  // namespace mdi::cuda
