#include "kernels/cuda/tensor_map.h"

#include <string>

#include "kernels/cuda/cuda_error.h"

namespace mdi::cuda {

namespace {

// The one driver function that the backend needs: asked of the runtime, so that nothing links to the driver's library
// and the program starts (and says so) on a machine without it.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  MDI_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error("cuda", "the driver has no cuTensorMapEncodeTiled: expected a driver for CUDA 12 or later");
  }
  return reinterpret_cast<Encode>(function);
}

CUtensorMapSwizzle swizzle_of(BoxSwizzle swizzle) {
  switch (swizzle) {
    case BoxSwizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case BoxSwizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case BoxSwizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

void tensor_map(CUtensorMap& map, const void* base, int element_bytes, int64_t rows, int64_t columns, int64_t row_bytes,
                int box_rows, int box_columns, BoxSwizzle swizzle) {
  static const Encode encode = find_encode();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult status =
      encode(&map, element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
             const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(swizzle),
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error("cuda tensor map", "the driver refused [" + std::to_string(rows) + ", " + std::to_string(columns) +
                                       "] of " + std::to_string(element_bytes) + "-byte elements, rows of " +
                                       std::to_string(row_bytes) + " bytes, boxes [" + std::to_string(box_rows) + ", " +
                                       std::to_string(box_columns) + "]: error " + std::to_string(status));
  }
}

}  // namespace mdi::cuda
