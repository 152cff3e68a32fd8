// Rope of the heads of a row (spec 6.2), alone and with the indexer's fp4 quantiser (6.6).
//
// A block a row: its 32 angles are computed once, in double, into shared memory; then 64 heads of 64 rotated values are
// 8 KB read and written. 4,096 rows: 67 MB, 16 us at 4,267 GB/s, 23 measured on one H200 (68%). With the quantiser, 32
// heads of 128: 18 us by bytes, 40 measured (44%; the e2m1 comparisons take the rest).
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxPairs = 256;

__device__ void angles_of_row(const RopeTable& rope, int32_t position, float2* angles, bool inverse) {
  for (int i = static_cast<int>(threadIdx.x); i < rope.rope_dim / 2; i += kThreads) {
    const float2 a = rope_angle(position, rope.inv_freq[i]);
    angles[i] = {a.x, inverse ? -a.y : a.y};
  }
  __syncthreads();
}

// kPairs: 4 where rows are 16-byte aligned, else 1.
template <int kPairs>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopeTable rope, const int32_t* position, int32_t heads, int32_t head_dim, bf16* x, bool inverse) {
  __shared__ float2 angles[kMaxPairs];
  ptx::let_next_start();
  angles_of_row(rope, position[blockIdx.x], angles, inverse);  // the step's own arrays are there before it
  ptx::wait_for_earlier();
  const int steps = rope.rope_dim / 2 / kPairs;
  bf16* part = x + int64_t{blockIdx.x} * heads * head_dim + (head_dim - rope.rope_dim);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < heads * steps; i += kThreads) {
    const int pair = i % steps * kPairs;
    bf16* at = part + int64_t{i / steps} * head_dim + 2 * pair;
    if constexpr (kPairs == 4) {
      uint4 v = *reinterpret_cast<uint4*>(at);
      v.x = rope_pair(v.x, angles[pair]);
      v.y = rope_pair(v.y, angles[pair + 1]);
      v.z = rope_pair(v.z, angles[pair + 2]);
      v.w = rope_pair(v.w, angles[pair + 3]);
      *reinterpret_cast<uint4*>(at) = v;
    } else {
      auto* word = reinterpret_cast<uint32_t*>(at);
      *word = rope_pair(*word, angles[pair]);
    }
  }
}

// Eight values a thread, four neighbours a block of 32: 16 threads a head of 128.
__global__ void __launch_bounds__(kThreads)
    rope_fp4_kernel(RopeTable rope, const int32_t* position, int32_t heads, int32_t dim, const bf16* x, uint8_t* codes,
                    e8m0* scales, bf16* values) {
  __shared__ float2 angles[kMaxPairs];
  const int plain = dim - rope.rope_dim;
  const int chunks = heads * (dim / 8);
  const int64_t row = int64_t{blockIdx.x} * heads * dim;
  angles_of_row(rope, position[blockIdx.x], angles, false);
  // Whole groups of four threads: dim is a multiple of 32.
#pragma unroll 2
  for (int first = 0; first < chunks; first += kThreads) {
    const int chunk = first + static_cast<int>(threadIdx.x);
    const bool active = chunk < chunks;
    const int e = chunk * 8 % dim;
    uint32_t v[4] = {};
    if (active) {
      const uint4 loaded = *reinterpret_cast<const uint4*>(x + row + chunk * 8);
      v[0] = loaded.x, v[1] = loaded.y, v[2] = loaded.z, v[3] = loaded.w;
      if (e >= plain) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = rope_pair(v[i], angles[(e - plain) / 2 + i]);
      }
    }
    const uint32_t byte =
        scale_byte(group_max(magnitude_max(uint4{v[0], v[1], v[2], v[3]}), 4), kFp4FloorE8M0, kInverse6);
    if (!active) continue;
    const float inverse = byte == 255 ? __uint_as_float(0x7FC00000u) : e8m0_inverse(byte);
    uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed |= e2m1_code(low_half(v[i]) * inverse) << (8 * i) | e2m1_code(high_half(v[i]) * inverse) << (8 * i + 4);
    }
    if (codes != nullptr) *reinterpret_cast<uint32_t*>(codes + (row + chunk * 8) / 2) = packed;
    if (scales != nullptr && e % 32 == 0) scales[(row + chunk * 8) / 32].bits = static_cast<uint8_t>(byte);
    if (values != nullptr) {
      const float scale = e8m0_value(byte);
      const auto pair = [&](int i) {
        return pack_bf16(e2m1_value(packed >> (8 * i) & 15u) * scale, e2m1_value(packed >> (8 * i + 4) & 15u) * scale);
      };
      *reinterpret_cast<uint4*>(values + row + chunk * 8) = uint4{pair(0), pair(1), pair(2), pair(3)};
    }
  }
}

void check_rope(const RopeTable& rope, int32_t dim) {
  if (rope.rope_dim / 2 > kMaxPairs || rope.rope_dim > dim || rope.rope_dim % 2 != 0 || dim % 2 != 0) {
    throw Error("cuda rope",
                "cannot rotate " + std::to_string(rope.rope_dim) + " of " + std::to_string(dim) + " values");
  }
}

}  // namespace

void rope_rows(CudaContext& context, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t heads,
               int32_t head_dim, bf16* x, bool inverse) {
  if (rows == 0) return;
  check_rope(rope, head_dim);
  const bool vectors = rope.rope_dim % 8 == 0 && head_dim % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const auto kernel = vectors ? rope_kernel<4> : rope_kernel<1>;
  launch_early(context, kernel, static_cast<unsigned>(rows), kThreads, 0, 1, rope, position, heads, head_dim, x,
               inverse);
  MDI_CUDA_LAUNCHED(context, "rope [" + std::to_string(rows) + ", " + std::to_string(heads) + "]");
}

void rope_fp4_rows(CudaContext& context, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t heads,
                   int32_t dim, const bf16* x, uint8_t* codes, e8m0* scales, bf16* values) {
  if (rows == 0) return;
  check_rope(rope, dim);
  const auto address = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(values);
  if (dim % 32 != 0 || rope.rope_dim % 8 != 0 || address % 16 != 0) {
    throw Error("cuda rope_fp4", "expected aligned heads of a multiple of 32 values, found " + std::to_string(dim));
  }
  rope_fp4_kernel<<<static_cast<unsigned>(rows), kThreads, 0, context.stream>>>(rope, position, heads, dim, x, codes,
                                                                                scales, values);
  MDI_CUDA_LAUNCHED(context, "rope_fp4 [" + std::to_string(rows) + ", " + std::to_string(heads) + "]");
}

}  // namespace mdi::cuda
