// W8A8 products: e4m3 weights in 32 x 32 blocks.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE4M3, Epilogue::kBF16, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
