// W8A8 products added to fp32 sums: the shared expert's second product.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE4M3, Epilogue::kAdd, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
