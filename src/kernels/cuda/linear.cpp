#include "kernels/cuda/linear.h"

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

void linear_quantised(CudaContext& context, const bf16* x, int64_t m, int64_t ldx, const LinearWeight& w, bf16* y_bf16,
                      float* y_f32, int64_t ldy) {
  GroupedProduct product;
  product.epilogue = y_f32 != nullptr ? Epilogue::kF32 : Epilogue::kBF16;
  product.x = x;
  product.x_rows = m;
  product.ldx = ldx;
  product.weight[0] = w;
  product.y = y_bf16;
  product.y_f32 = y_f32;
  product.ldy = ldy;
  grouped_product(context, product);
}

void linear(CudaContext& context, const bf16* x, int64_t m, const LinearWeight& w, bf16* y_bf16, float* y_f32,
            int64_t ldy) {
  if (m == 0) return;
  const WorkspaceScope scope(context);
  if (w.kind == WeightKind::kE4M3 || w.kind == WeightKind::kE2M1) {
    bf16* quantised = context.workspace.take<bf16>(m * w.k, "rows of a quantised product");
    act_quant_dequant_rows(context, x, w.k, m, w.k, quantised, w.k);
    x = quantised;
  }
  linear_quantised(context, x, m, w.k, w, y_bf16, y_f32, ldy);
}

}  // namespace mdi::cuda
