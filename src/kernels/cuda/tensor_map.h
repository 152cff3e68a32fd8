// Descriptions of matrices for the tensor copy engine, made on the host and passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mdi::cuda {

enum class BoxSwizzle : uint8_t { kNone, k32, k64, k128 };

// A row-major matrix [rows, columns] of elements of 1 or 2 bytes, rows `row_bytes` apart, copied in boxes of
// [box_rows, box_columns]. What lies outside of the matrix arrives as zero. The base and row_bytes are multiples of 16,
// box_rows is at most 256, and a box's row is no wider than the swizzle. Throws mdi::Error when the driver refuses.
// `map` is the caller's: a map that is returned may lie in a temporary that nvcc's host compiler aligns to 16 bytes.
void tensor_map(CUtensorMap& map, const void* base, int element_bytes, int64_t rows, int64_t columns, int64_t row_bytes,
                int box_rows, int box_columns, BoxSwizzle swizzle);

}  // namespace mdi::cuda
