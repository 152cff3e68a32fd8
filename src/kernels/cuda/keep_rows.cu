// Keeps some rows of an array, in place (ops.h). A thread owns a column of the rows and goes down it, so that the order
// of reads and writes within a column is its own; eight rows are in flight.
#include "kernels/cuda/context.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 64;  // narrow blocks: the columns of one row are all the parallelism there is
constexpr int kInFlight = 8;

template <class Unit>
__global__ void __launch_bounds__(kThreads) keep_rows_kernel(KeepRowsArgs a, int64_t units) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= units) return;
  auto* data = static_cast<Unit*>(a.data) + column;
  for (int32_t first = 0; first < a.rows; first += kInFlight) {
    const int32_t count = min(kInFlight, a.rows - first);
    // The index ascends: the last row stays where it is only if all before it do.
    if (a.index[first + count - 1] == first + count - 1) continue;
    Unit held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (i < count) held[i] = data[a.index[first + i] * units];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (i < count) data[(first + i) * units] = held[i];
    }
  }
}

}  // namespace

void keep_rows(Context& base, const KeepRowsArgs& args) {
  CudaContext& context = cuda(base);
  if (args.rows == 0 || args.row_bytes == 0) return;
  if (args.row_bytes % 4 != 0) {
    throw Error("cuda keep_rows", "expected rows of a multiple of 4 bytes, found " + std::to_string(args.row_bytes));
  }
  const bool wide = args.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(args.data) % 16 == 0;
  const int64_t units = args.row_bytes / (wide ? 16 : 4);
  const auto kernel = wide ? keep_rows_kernel<uint4> : keep_rows_kernel<uint32_t>;
  kernel<<<static_cast<unsigned>((units + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(args, units);
  MDI_CUDA_LAUNCHED(context, "keep_rows [" + std::to_string(args.rows) + "]");
}

}  // namespace mdi::cuda
