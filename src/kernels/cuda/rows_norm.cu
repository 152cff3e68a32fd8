// RMSNorm of rows (spec 3.6), alone, with the act_quant of the product that follows, and as the last step of a window
// row (6.4: norm, rope, act_quant, stored as codes and scales).
//
// A warp a row, in the oracle's order of sums: thread t holds its lanes 2t and 2t + 1, so that a step is one 4-byte
// load a thread, 128 bytes a warp. Rows of 1,280 and 512: 4,096 of them read and write 21 and 8 MB, 5 and 2 us; the
// second pass reads from L1.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 4;

// The row's inverse RMS; i-th step of thread t reads elements 64 i + 2 t and the next.
__device__ float row_inverse_rms(const bf16* x, int64_t n, float eps, int lane) {
  float a = 0, b = 0;
#pragma unroll 8
  for (int64_t e = 2 * lane; e < n; e += 64) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(x + e);
    a = __fadd_rn(a, __fmul_rn(low_half(pair), low_half(pair)));
    b = __fadd_rn(b, __fmul_rn(high_half(pair), high_half(pair)));
  }
  return inverse_rms(tree_of_64(a, b), n, eps);
}

__device__ uint32_t normalised_pair(uint32_t x, uint32_t w, float r) {
  return pack_bf16(low_half(w) * (low_half(x) * r), high_half(w) * (high_half(x) * r));
}

struct Norm {
  const bf16* x;
  int64_t ldx;
  const bf16* w;
  int64_t rows, n;
  float eps;
  bf16* y;
  int64_t ldy;
  bf16* quantised;  // or null
};

__global__ void __launch_bounds__(kWarps * 32) rms_norm_kernel(Norm a) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const bf16* x = a.x + row * a.ldx;
  const float r = row_inverse_rms(x, a.n, a.eps, lane);
  // Whole steps of 64, so that all lanes take part in the shuffles.
  for (int64_t first = 0; first < a.n; first += 64) {
    const int64_t e = first + 2 * lane;
    const bool active = e < a.n;
    uint32_t y = 0;
    if (active) {
      y = normalised_pair(*reinterpret_cast<const uint32_t*>(x + e), *reinterpret_cast<const uint32_t*>(a.w + e), r);
      *reinterpret_cast<uint32_t*>(a.y + row * a.ldy + e) = y;
    }
    if (a.quantised == nullptr) continue;
    const uint32_t byte = scale_byte(group_max(magnitude_max(y), 16), kActFloor, kInverse448);
    if (!active) continue;
    uint32_t q = 0x7FC07FC0u;
    if (byte != 255) {
      const float inverse = e8m0_inverse(byte), scale = e8m0_value(byte);
      const float2 v = e4m3_values(e4m3_codes(low_half(y) * inverse, high_half(y) * inverse));
      q = pack_bf16(v.x * scale, v.y * scale);
    }
    *reinterpret_cast<uint32_t*>(a.quantised + row * a.n + e) = q;
  }
}

struct Window {
  RopeTable rope;
  const int32_t* position;
  int64_t rows;
  int32_t head_dim;
  const bf16* kv;
  const bf16* norm;
  float eps;
  std::byte* out;
};

__global__ void __launch_bounds__(kWarps * 32) window_rows_kernel(Window a) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const bf16* x = a.kv + row * a.head_dim;
  const float r = row_inverse_rms(x, a.head_dim, a.eps, lane);
  const int plain = a.head_dim - a.rope.rope_dim;  // elements that are not rotated
  auto* codes = reinterpret_cast<uint8_t*>(a.out + row * (a.head_dim + a.head_dim / 32));
  for (int first = 0; first < a.head_dim; first += 64) {
    const int e = first + 2 * lane;
    const bool active = e < a.head_dim;
    uint32_t y = 0;
    if (active) {
      y = normalised_pair(*reinterpret_cast<const uint32_t*>(x + e), *reinterpret_cast<const uint32_t*>(a.norm + e), r);
      if (e >= plain) y = rope_pair(y, rope_angle(a.position[row], a.rope.inv_freq[(e - plain) / 2]));
    }
    const uint32_t byte = scale_byte(group_max(magnitude_max(y), 16), kActFloor, kInverse448);
    if (!active) continue;
    const float inverse = e8m0_inverse(byte == 255 ? 127u : byte);
    const uint32_t pair = byte == 255 ? 0x7F7Fu : e4m3_codes(low_half(y) * inverse, high_half(y) * inverse);
    codes[e] = static_cast<uint8_t>(pair);  // rows are 528 bytes at head_dim 512, but 66 at 64: no wider store fits all
    codes[e + 1] = static_cast<uint8_t>(pair >> 8);
    if (lane % 16 == 0) codes[a.head_dim + e / 32] = static_cast<uint8_t>(byte);
  }
}

unsigned blocks_of(int64_t rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); }

void launch_norm(CudaContext& context, const Norm& a) {
  if (a.rows == 0) return;
  if (a.n % 2 != 0 || a.ldx % 2 != 0 || a.ldy % 2 != 0) {
    throw Error("cuda rms_norm", "rows of an odd length or stride: " + std::to_string(a.n));
  }
  rms_norm_kernel<<<blocks_of(a.rows), kWarps * 32, 0, context.stream>>>(a);
  MDI_CUDA_LAUNCHED(context, "rms_norm [" + std::to_string(a.rows) + ", " + std::to_string(a.n) + "]");
}

}  // namespace

void rms_norm_rows(CudaContext& context, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n, float eps,
                   bf16* y, int64_t ldy) {
  launch_norm(context, {x, ldx, w, rows, n, eps, y, ldy, nullptr});
}

void rms_norm_quant_rows(CudaContext& context, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n,
                         float eps, bf16* y, int64_t ldy, bf16* quantised) {
  launch_norm(context, {x, ldx, w, rows, n, eps, y, ldy, quantised});
}

void window_rows(CudaContext& context, const RopeTable& rope, const int32_t* position, int64_t rows, int32_t head_dim,
                 const bf16* kv, const bf16* norm, float eps, std::byte* out) {
  if (rows == 0) return;
  window_rows_kernel<<<blocks_of(rows), kWarps * 32, 0, context.stream>>>(
      {rope, position, rows, head_dim, kv, norm, eps, out});
  MDI_CUDA_LAUNCHED(context, "window_rows [" + std::to_string(rows) + ", " + std::to_string(head_dim) + "]");
}

}  // namespace mdi::cuda
