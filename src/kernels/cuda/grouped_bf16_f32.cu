// bf16 products with fp32 results: gate, head, compressors.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kBF16, Epilogue::kF32, false>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
