// vision_linear of ops.h: bias, GELU and residual in the product's epilogue, so that a patch's row is written once.
//
// At 9,216 patches the largest product (1024 -> 5632) is 106 GFLOP, 0.16 ms at the sustained bf16 rate, and moves
// 134 MB; through an fp32 array in memory it would move 530 MB. Measured on an H200 at 8,928 patches: w1 0.181 ms
// (85%), wqkv 0.107 (78%), w2 0.108 (71%), wo 0.053 (53%: 1,024 columns are few tiles for 132 multiprocessors); the
// whole tower takes 46.9 ms, 31 of them attention. The tensor copy engine wants rows of a multiple of 16 bytes: the
// patches' 588 values are copied into rows of 592 with zeros behind them, which changes no sum.
#include <algorithm>
#include <string>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/grouped_epilogue.cuh"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

// A thread four values: k and wide are multiples of four.
__global__ void __launch_bounds__(kThreads)
    widen_rows_kernel(const bf16* x, int64_t rows, int64_t k, int64_t wide, bf16* y) {
  const int64_t packs = wide / 4, at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= rows * packs) return;
  const int64_t row = at / packs, e = at % packs * 4;
  const uint2 v = e < k ? *reinterpret_cast<const uint2*>(x + row * k + e) : uint2{};
  *reinterpret_cast<uint2*>(y + row * wide + e) = v;
}

// The epilogue alone, for shapes that the tensor copy engine cannot address.
__global__ void __launch_bounds__(kThreads) vision_finish_kernel(const float* sums, VisionLinearArgs a) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= a.rows * a.w.n) return;
  float v = sums[at];
  if (a.bias != nullptr) v = __fadd_rn(v, widen(a.bias[at % a.w.n]));
  v = rounded(v);
  if (a.gelu) v = exact_gelu(v);
  if (a.residual != nullptr) v = __fadd_rn(widen(a.residual[at]), v);
  a.y[at] = narrow(v);
}

bool aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

const bf16* widened(CudaContext& context, const bf16* x, int64_t rows, int64_t k, int64_t wide) {
  auto* y = context.workspace.take<bf16>(rows * wide, "padded rows of a product");
  widen_rows_kernel<<<blocks_for(rows * wide / 4), kThreads, 0, context.stream>>>(x, rows, k, wide, y);
  MDI_CUDA_LAUNCHED(context, "widen_rows [" + std::to_string(rows) + ", " + std::to_string(k) + "]");
  return y;
}

void plain(CudaContext& context, const VisionLinearArgs& args) {
  auto* sums = context.workspace.take<float>(args.rows * args.w.n, "sums of a vision product");
  GroupedProduct product;
  product.epilogue = Epilogue::kF32;
  product.x = args.x;
  product.x_rows = args.rows;
  product.ldx = args.w.k;
  product.weight[0] = args.w;
  product.y_f32 = sums;
  product.ldy = args.w.n;
  plain_product(context, product);
  vision_finish_kernel<<<blocks_for(args.rows * args.w.n), kThreads, 0, context.stream>>>(sums, args);
  MDI_CUDA_LAUNCHED(context, "vision_finish [" + std::to_string(args.rows) + ", " + std::to_string(args.w.n) + "]");
}

}  // namespace

void vision_linear(Context& base, const VisionLinearArgs& args) {
  CudaContext& context = cuda(base);
  if (args.rows == 0) return;
  if (args.w.kind != WeightKind::kBF16) throw Error("cuda vision_linear", "the weight is not bf16");
  const WorkspaceScope scope(context);
  const int64_t wide = (args.w.k + 7) / 8 * 8;
  // By the shape alone: a row must not get other bits because of where it lies.
  if (!fits_tensor_copies(WeightKind::kBF16, Epilogue::kVision, args.w.n, wide) || args.w.k % 4 != 0) {
    return plain(context, args);
  }
  const uintptr_t rows_at =
      wide == args.w.k ? 16 : 8;  // rows that are copied first may lie anywhere that they can be read
  if (!aligned(args.residual, 16) || !aligned(args.y, 16) || !aligned(args.x, rows_at) ||
      !aligned(args.w.data, rows_at)) {
    throw Error("cuda vision_linear", "expected arrays at multiples of 16 bytes, rows of " + std::to_string(args.w.k) +
                                          " values at multiples of " + std::to_string(rows_at));
  }
  GroupedProduct product;
  product.epilogue = Epilogue::kVision;
  product.x = args.x;
  product.weight[0] = args.w;
  if (wide != args.w.k) {
    product.x = widened(context, args.x, args.rows, args.w.k, wide);
    product.weight[0].data = widened(context, static_cast<const bf16*>(args.w.data), args.w.n, args.w.k, wide);
    product.weight[0].k = wide;
  }
  product.x_rows = args.rows;
  product.ldx = wide;
  product.y = args.y;
  product.ldy = args.w.n;
  product.bias = args.bias;
  product.residual = args.residual;
  product.gelu = args.gelu;
  grouped_product(context, product);
}

}  // namespace mdi::cuda
