// W4A8 products: e2m1 weights in 1 x 32 blocks, the experts' second product.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE2M1, Epilogue::kBF16, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
