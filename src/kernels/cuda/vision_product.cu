// bf16 products with the vision tower's epilogue (VisionLinearArgs). Fewer widths than the text network's: an image has
// hundreds of patches, and a width is a kernel to compile.
#include "kernels/cuda/grouped_launch.cuh"

namespace mdi::cuda {

template <>
void launch_grouped<WeightKind::kBF16, Epilogue::kVision, false>(CudaContext& context, const GroupedProduct& g) {
  launch_cheapest<WeightKind::kBF16, Epilogue::kVision, false>(context, g,
                                                               std::integer_sequence<int, 256, 192, 128, 64, 16>{});
}

}  // namespace mdi::cuda
