// W8A8 products of few columns, K split into parts.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE4M3, Epilogue::kBF16, true>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
