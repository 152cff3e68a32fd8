// The products around attention (spec 6.3, 6.4, 6.8), composed of linear.h and rows.h.
#include <optional>

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/side_work.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

void attention_input(Context& base, const StepView& step, const AttentionInputArgs& args) {
  if (step.rows == 0) return;
  CudaContext& context = cuda(base);
  const WorkspaceScope scope(context);
  const int64_t rows = step.rows, dim = args.wq_a.k, rank = args.wq_a.n;
  const bool window = args.window_rows != nullptr;
  bf16* const kv = context.workspace.take<bf16>(window ? rows * args.head_dim : 0, "window rows before their norm");
  const bf16* x = args.x;
  if (args.wq_a.kind == WeightKind::kE4M3) {  // both products take the same rows
    bf16* const quantised = context.workspace.take<bf16>(rows * dim, "rows of the attention's first products");
    act_quant_dequant_rows(context, x, dim, rows, dim, quantised, dim);
    x = quantised;
  }
  // Few columns: with few rows this product takes as long as the queries' first one and leaves the device as empty.
  std::optional<SideWork> beside;
  if (window) {
    beside.emplace(context);
    linear_quantised(context, x, rows, dim, args.wkv, kv, nullptr, args.head_dim);
    window_rows(context, args.rope, step.position, rows, args.head_dim, kv, args.kv_norm, args.eps, args.window_rows);
    beside->back();
  }
  linear_quantised(context, x, rows, dim, args.wq_a, args.qr, nullptr, rank);
  const int64_t width = int64_t{args.heads} * args.head_dim;
  if (args.wq_b.kind == WeightKind::kE4M3 && rank % 32 == 0) {
    bf16* const quantised = context.workspace.take<bf16>(rows * rank, "query latents");
    rms_norm_quant_rows(context, args.qr, rank, args.q_norm, rows, rank, args.eps, args.qr, rank, quantised);
    linear_quantised(context, quantised, rows, rank, args.wq_b, args.q, nullptr, width);
  } else {
    rms_norm_rows(context, args.qr, rank, args.q_norm, rows, rank, args.eps, args.qr, rank);
    linear(context, args.qr, rows, args.wq_b, args.q, nullptr, width);
  }
  rope_rows(context, args.rope, step.position, rows, args.heads, args.head_dim, args.q, false);
  if (beside) beside->join();
}

void attention_output(Context& base, const StepView& step, const AttentionOutputArgs& args) {
  if (step.rows == 0) return;
  CudaContext& context = cuda(base);
  const WorkspaceScope scope(context);
  const int64_t rows = step.rows, ranks = int64_t{args.groups} * args.o_rank;
  rope_rows(context, args.rope, step.position, rows, args.heads, args.head_dim, args.o, true);
  bf16* const z = context.workspace.take<bf16>(rows * ranks, "attention output before wo_b");
  GroupedProduct product;
  product.x = args.o;
  product.x_rows = rows;
  product.ldx = int64_t{args.heads} * args.head_dim;
  product.weight[0] = args.wo_a;
  product.n_per_column_group = args.o_rank;
  product.y = z;
  product.ldy = ranks;
  grouped_product(context, product);
  linear(context, z, rows, args.wo_b, args.y, nullptr, args.wo_b.n);
}

}  // namespace mdi::cuda
