// Which library products the dense products may use: those that were proved, on this machine, to give every row the
// bits that it has alone.
//
// oneDNN picks a kernel by shape, so a row's bits could change with the number of rows. Ours are multiplied at fixed
// shapes only, and a shape is used after its first products were compared bit for bit with the other way that a row of
// it may be computed: for f32 our own chain of fused multiply-adds (fma_kernel.h), which all remaining rows take; for
// bf16 a second, smaller tile, to which remaining rows are padded. A shape that fails is not used, and the log says so
// once.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/cpu/dnnl_matmul.h"

namespace mdi::cpu {

inline constexpr int64_t kBlockK = 512;  // columns of k per product; longer sums add block after block
inline constexpr int kTileRows = 64;     // f32: 64 x 512 x 64 runs at 95% of the rate that one large product reaches
inline constexpr int kLargeRows = 256;   // bf16: matrix units need 6 us of work to hide a call's 1 us
inline constexpr int kSmallRows = 16;    // bf16: one register tile

// What weights that are exact in bf16 are multiplied in. kOwn: as kF32, but by our own kernel alone.
enum class GemmMode : uint8_t { kF32, kBF16, kOwn };

// kBF16 where the machine has matrix units for it, else kF32, or kOwn in a build without oneDNN; MDI_CPU_GEMM
// overrides.
GemmMode gemm_mode();
// "f32", "bf16" or "own"; empty: the machine decides. Throws mdi::Error on another text.
GemmMode gemm_mode_of(std::string_view text);
void set_gemm_mode(GemmMode mode);  // for tests and benchmarks; not while products run

// k is a multiple of 32, at most kBlockK. Null: not proved, use our own kernel.
const DnnlMatmul* f32_tile(int64_t k);

struct BF16Tiles {
  const DnnlMatmul* large = nullptr;  // kLargeRows
  const DnnlMatmul* small = nullptr;  // kSmallRows
};
// Both or, where they were not proved equal, neither: then f32 is used for every product with such a k.
BF16Tiles bf16_tiles(int64_t k);

}  // namespace mdi::cpu
