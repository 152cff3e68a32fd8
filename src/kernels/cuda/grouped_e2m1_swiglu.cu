// Two W4A8 products and SwiGLU: the experts' first half.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kE2M1, Epilogue::kSwiglu, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
