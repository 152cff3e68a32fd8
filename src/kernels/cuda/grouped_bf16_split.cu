// bf16 products of few columns, K split into parts: gate, compressors, index weights.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template void launch_grouped<WeightKind::kBF16, Epilogue::kBF16, true>(CudaContext&, const GroupedProduct&);
template void launch_grouped<WeightKind::kBF16, Epilogue::kF32, true>(CudaContext&, const GroupedProduct&);

}  // namespace mdi::cuda
