// RMSNorm of rows (spec 3.6), alone or with the act_quant of the product that follows.
//
// 4,096 rows of 1,280 with the operand: 31 MB, 7.4 us at 4,267 GB/s; of 5,120 without: 84 MB, 20 us. Measured
// on one H200: 11 us (66%) and 22 us (88%). Rows up to 1,024
// take a warp, longer ones a block of four (norm_row.cuh); rows that are not aligned take the slow kernel.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

struct Norm {
  const bf16* x;
  int64_t ldx;
  const bf16* w;
  int64_t rows;
  int32_t n;
  float eps;
  bf16* y;
  int64_t ldy;
  bf16* quantised;  // or null; then n % 32 == 0
};

// kPerRow: threads a row, 32 or all of the block.
template <int kPerRow, int kVectors>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(Norm a) {
  extern __shared__ uint4 shared_rows[];
  __shared__ float block_rms;
  ptx::let_next_start();
  ptx::wait_for_earlier();
  constexpr int kRows = kThreads / kPerRow;
  const int thread = static_cast<int>(threadIdx.x) % kPerRow;
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kPerRow;
  if (row >= a.rows) return;  // whole warps, or no block at all
  bf16* shared = reinterpret_cast<bf16*>(shared_rows) + static_cast<int>(threadIdx.x) / kPerRow * a.n;
  uint4 v[kVectors], w[kVectors];
  load_row<kPerRow>(a.x + row * a.ldx, a.n, thread, v, shared);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int e = 8 * (thread + k * kPerRow);
    w[k] = e < a.n ? *reinterpret_cast<const uint4*>(a.w + e) : uint4{};
  }
  float r = 0;
  if constexpr (kPerRow == 32) {
    __syncwarp();
    r = shared_inverse_rms(shared, a.n, a.eps, thread);
  } else {
    __syncthreads();
    if (thread < 32) {
      r = shared_inverse_rms(shared, a.n, a.eps, thread);
      if (thread == 0) block_rms = r;
    }
    __syncthreads();
    r = block_rms;
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int e = 8 * (thread + k * kPerRow);
    const uint4 y = normalised(v[k], w[k], r);
    // All lanes take part; those past the end hold zeros, and a block of 32 is inside or outside as a whole.
    const uint32_t byte =
        a.quantised != nullptr ? scale_byte(group_max(magnitude_max(y), 4), kActFloor, kInverse448) : 0;
    if (e >= a.n) continue;
    *reinterpret_cast<uint4*>(a.y + row * a.ldy + e) = y;
    if (a.quantised != nullptr) *reinterpret_cast<uint4*>(a.quantised + row * a.n + e) = requantised(y, byte);
  }
}

// Any even n and stride: a warp a row, straight from global memory.
__global__ void __launch_bounds__(kThreads) rms_norm_slow(Norm a) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const bf16* x = a.x + row * a.ldx;
  const float r = shared_inverse_rms(x, a.n, a.eps, lane);
  for (int first = 0; first < a.n; first += 64) {
    const int e = first + 2 * lane;
    const bool active = e < a.n;
    uint32_t y = 0;
    if (active) {
      y = normalised_pair(*reinterpret_cast<const uint32_t*>(x + e), *reinterpret_cast<const uint32_t*>(a.w + e), r);
      *reinterpret_cast<uint32_t*>(a.y + row * a.ldy + e) = y;
    }
    if (a.quantised == nullptr) continue;
    const uint32_t byte = scale_byte(group_max(magnitude_max(y), 16), kActFloor, kInverse448);
    if (!active) continue;
    *reinterpret_cast<uint32_t*>(a.quantised + row * a.n + e) =
        byte == 255 ? 0x7FC07FC0u : requantised_pair(y, e8m0_inverse(byte), e8m0_value(byte));
  }
}

template <int kPerRow, int kVectors>
void launch_fast(CudaContext& context, const Norm& a) {
  constexpr int kRows = kThreads / kPerRow;
  const size_t shared = static_cast<size_t>(kRows) * static_cast<size_t>(a.n) * sizeof(bf16);
  const auto blocks = static_cast<unsigned>((a.rows + kRows - 1) / kRows);
  launch_early(context, rms_norm_kernel<kPerRow, kVectors>, blocks, kThreads, shared, 1, a);
}

bool aligned16(const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0; }

void launch(CudaContext& context, const Norm& a) {
  if (a.rows == 0) return;
  if (a.n % 2 != 0 || a.ldx % 2 != 0 || a.ldy % 2 != 0) {
    throw Error("cuda rms_norm", "rows of an odd length or stride: " + std::to_string(a.n));
  }
  const bool fast = a.n % 8 == 0 && a.n <= 8192 && aligned16(a.x, a.ldx) && aligned16(a.y, a.ldy) &&
                    aligned16(a.w, 0) && aligned16(a.quantised, 0) && (a.quantised == nullptr || a.n % 32 == 0);
  if (!fast) {
    rms_norm_slow<<<static_cast<unsigned>((a.rows + kWarps - 1) / kWarps), kThreads, 0, context.stream>>>(a);
  } else if (a.n <= 512) {
    launch_fast<32, 2>(context, a);
  } else if (a.n <= 1024) {
    launch_fast<32, 4>(context, a);
  } else if (a.n <= 2048) {
    launch_fast<kThreads, 2>(context, a);
  } else if (a.n <= 5120) {
    launch_fast<kThreads, 5>(context, a);
  } else {
    launch_fast<kThreads, 8>(context, a);
  }
  MDI_CUDA_LAUNCHED(context, "rms_norm [" + std::to_string(a.rows) + ", " + std::to_string(a.n) + "]");
}

}  // namespace

void rms_norm_rows(CudaContext& context, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n, float eps,
                   bf16* y, int64_t ldy) {
  launch(context, {x, ldx, w, rows, static_cast<int32_t>(n), eps, y, ldy, nullptr});
}

void rms_norm_quant_rows(CudaContext& context, const bf16* x, int64_t ldx, const bf16* w, int64_t rows, int64_t n,
                         float eps, bf16* y, int64_t ldy, bf16* quantised) {
  launch(context, {x, ldx, w, rows, static_cast<int32_t>(n), eps, y, ldy, quantised});
}

}  // namespace mdi::cuda
