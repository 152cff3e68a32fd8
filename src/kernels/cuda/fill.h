// Random values made on the device, for synthetic weights and caches of any size: a rank of the released model has
// 130 GB of them, which no host could make and copy in the time of a benchmark.
//
// A value is a function of (key, its place) alone. Launches on the context's stream; nothing is waited for.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace mdi::cuda {

// `rows` pieces of memory of `row_bytes`, `stride` bytes apart. One row: stride is not used.
struct FillRegion {
  void* base = nullptr;
  int64_t row_bytes = 0, rows = 1, stride = 0;
};

// Normal values of this mean and standard deviation; region sizes in whole elements.
void fill_bf16(CudaContext&, const FillRegion&, float mean, float spread, uint64_t key);
void fill_f32(CudaContext&, const FillRegion&, float mean, float spread, uint64_t key);

// Codes of normal values as a quantiser leaves a block of 32: a deviation of 92 (e4m3) or 2.2 (e2m1, two a byte).
void fill_e4m3(CudaContext&, const FillRegion&, uint64_t key);
void fill_e2m1(CudaContext&, const FillRegion&, uint64_t key);

// e8m0 bytes of 2^(exponent + s), s one of -1, 0, 0, 1, plus one for a share `next` of them.
void fill_scales(CudaContext&, const FillRegion&, int exponent, double next, uint64_t key);

// Bytes of [low, low + count), for e4m3 scales.
void fill_bytes(CudaContext&, const FillRegion&, int low, int count, uint64_t key);

}  // namespace mdi::cuda
