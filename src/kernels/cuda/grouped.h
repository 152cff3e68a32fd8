// The one product of the CUDA backend: y[r] = x[r] W^T for rows of one or many groups, each group with a weight of its
// own (the experts of a layer), in the weight's checkpoint storage, with the epilogues that its callers need.
//
// x is bf16: dequantised act_quant rows for W8A8 and W4A8 products (exact in bf16). Weights are expanded to bf16 with
// their block scales (exact), products are summed in fp32 in one order, over all of K or over each of its parts
// (parts_of_k) and then over those: a row's bits depend on the row and the weight alone, never on m, on the tile that
// was picked or on the other groups.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/ops.h"

namespace mdi::cuda {

enum class Epilogue : uint8_t {
  kBF16,    // y = bf16(product)
  kF32,     // y_f32 = product
  kAdd,     // y = bf16(sum + fp32(bf16(product)))
  kSwiglu,  // y = act_quant_dequant(bf16(weight * silu(min(g, limit)) * clamp(u, -limit, limit))), g and u the rounded
            // products with weight[0] and weight[1] (7)
  kVision,  // y = bf16(product + bias), then bf16(gelu(y)) or bf16(residual + y) (VisionLinearArgs)
};

struct GroupedProduct {
  Epilogue epilogue = Epilogue::kBF16;
  const bf16* x = nullptr;  // [x_rows, column groups * k], row stride ldx
  int64_t x_rows = 0, ldx = 0;
  bool x_words = false;    // kE2M1: the columns of x are in the order of word_order.cuh; else they are put into it
  LinearWeight weight[2];  // of the first group (n and k of one group); [1]: kSwiglu alone
  int32_t groups = 1;      // data and scales of the groups follow each other without a gap
  // Rows of group g: row_begin[g] .. row_begin[g + 1], on the device; null: the one group has all x_rows rows.
  const int32_t* row_begin = nullptr;
  // Output columns n take the input columns (n / n_per_column_group) * k and on (wo_a); 0: all take the first k.
  int64_t n_per_column_group = 0;
  int64_t usual_rows = 0;  // about how many rows a group has, for row_begin: picks tiles, not bits
  int width = 0;      // tokens of a tile, for tests: 16, 24, 32, 64, 96, 128, 144, 160, 192, 256; 0: picked by shape
  int32_t parts = 0;  // of K, 1 to 8, for tests; 0: parts_of_k. One group, not kAdd, kSwiglu, kVision or kE2M1
  bf16* y = nullptr;  // [x_rows, n], row stride ldy
  float* y_f32 = nullptr;
  int64_t ldy = 0;
  const float* sum = nullptr;         // kAdd [x_rows, n], row stride ldy
  const float* row_weight = nullptr;  // kSwiglu [x_rows], or null: 1
  float limit = 0;                    // kSwiglu
  bool y_words = false;               // kSwiglu: y's columns in the order of word_order.cuh. n % 64 == 0
  const bf16* bias = nullptr;         // kVision [n], or null: 0
  const bf16* residual = nullptr;     // kVision [x_rows, n], row stride ldy, or null; may be y
  bool gelu = false;                  // kVision, not with a residual
};

// True when the shape fits the tensor copy engine: the choice is by (kind, n, k) alone. Otherwise grouped_product runs
// a plain kernel, one thread an output.
bool fits_tensor_copies(WeightKind kind, Epilogue epilogue, int64_t n, int64_t k);

// Into how many parts K is split, for a product whose `parts` is 0: by kind, epilogue, n and k alone. Products of few
// columns have few tiles, each a chain of up to 128 dependent steps; at few rows a block takes a part.
int32_t parts_of_k(const GroupedProduct& product);

// x, weights and outputs 16-byte aligned, ldx and ldy multiples of 8 where fits_tensor_copies. At most 512 groups.
void grouped_product(CudaContext& context, const GroupedProduct& product);

// True when x_words makes a difference: the product would put x into word order itself (workspace: x_rows * row of x).
inline bool takes_words(const LinearWeight& w, Epilogue epilogue) {
  return w.kind == WeightKind::kE2M1 && fits_tensor_copies(w.kind, epilogue, w.n, w.k);
}

// The plain kernel alone (any shape, any kind), for kF32 weights and tiny models.
void plain_product(CudaContext& context, const GroupedProduct& product);

}  // namespace mdi::cuda
