// Two W8A8 products and SwiGLU: the shared expert's first half.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE4M3, Epilogue::kSwiglu, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
