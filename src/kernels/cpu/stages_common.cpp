#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

void tap(const Context& context, std::string_view name, DType dtype, const void* data,
         std::initializer_list<int64_t> shape) {
  if (!context.tap) return;
  TensorView view{.data = data, .dtype = dtype, .rank = static_cast<int>(shape.size()), .shape = {}};
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  context.tap(name, context.layer, view);
}

void quantised_rows(Context& context, const bf16* x, int64_t m, int64_t k, bf16* out) {
  cpu(context).pool.for_each(m, [=](int64_t i) { act_quant_dequant(x + i * k, k, out + i * k); });
}

namespace {

void product(Context& context, const bf16* x, int64_t m, const LinearWeight& w, bf16* y_bf16, float* y_f32) {
  if (m == 0) return;
  thread_local std::vector<bf16> quantised;
  if (w.kind == WeightKind::kE4M3 || w.kind == WeightKind::kE2M1) {
    quantised.resize(static_cast<size_t>(m * w.k));
    quantised_rows(context, x, m, w.k, quantised.data());
    x = quantised.data();
  }
  gemm(cpu(context).pool, {.x = x, .m = m, .ldx = w.k, .w = w, .y_f32 = y_f32, .y_bf16 = y_bf16, .ldy = w.n});
}

}  // namespace

void linear(Context& context, const bf16* x, int64_t m, const LinearWeight& w, bf16* y) {
  product(context, x, m, w, y, nullptr);
}
void linear(Context& context, const bf16* x, int64_t m, const LinearWeight& w, float* y) {
  product(context, x, m, w, nullptr, y);
}

}  // namespace mdi::cpu
