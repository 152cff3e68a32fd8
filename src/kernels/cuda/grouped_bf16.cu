// bf16 products.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kBF16, Epilogue::kBF16, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
