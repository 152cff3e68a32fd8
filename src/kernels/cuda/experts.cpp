// Routed and shared experts (spec 7) as compositions of grouped_product: the experts of a layer are the groups.
#include <algorithm>
#include <string>

#include "kernels/cuda/expert_rows.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/side_work.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

// Rows that one pass holds buffers for: 1.3 times what 16,384 tokens of uniform routing give a quarter of the experts.
constexpr int64_t kPassRows = 32768;

int64_t data_bytes(const LinearWeight& w) { return w.kind == WeightKind::kE2M1 ? w.n * w.k / 2 : w.n * w.k; }
int64_t scale_count(const LinearWeight& w) {
  return (w.kind == WeightKind::kE2M1 ? w.n : (w.n + 31) / 32) * ((w.k + 31) / 32);
}

// The experts of a layer are addressed as one tensor.
void check_packed(const ExpertWeights* experts, int32_t count, LinearWeight ExpertWeights::*which, const char* name) {
  const LinearWeight& base = experts[0].*which;
  for (int32_t e = 0; e < count; ++e) {
    const LinearWeight& w = experts[e].*which;
    const bool follows =
        w.kind == base.kind && w.n == base.n && w.k == base.k &&
        static_cast<const std::byte*>(w.data) == static_cast<const std::byte*>(base.data) + e * data_bytes(base) &&
        w.scale == base.scale + e * scale_count(base);
    if (!follows) {
      throw Error("cuda experts", std::string("expected the ") + name +
                                      " of a layer's experts one after the other in memory, with one shape; expert " +
                                      std::to_string(e) + " is elsewhere");
    }
  }
}

}  // namespace

void routed_experts(Context& base, const StepView& step, const RoutedExpertsArgs& args) {
  if (step.rows == 0) return;
  CudaContext& context = cuda(base);
  const WorkspaceScope scope(context);
  const ExpertWeights& e = args.experts[0];
  check_packed(args.experts, args.count, &ExpertWeights::w1, "w1");
  check_packed(args.experts, args.count, &ExpertWeights::w2, "w2");
  check_packed(args.experts, args.count, &ExpertWeights::w3, "w3");
  const int64_t tokens = step.rows, dim = e.w1.k, inter = e.w1.n;
  context.begin_part(OpPart::kDispatch);
  const ExpertRows rows = sort_expert_rows(context, args.index, args.weight, tokens, args.topk, args.first, args.count,
                                           std::min(tokens * args.topk, kPassRows));
  // The gathered rows are dead once the first products have run, so the results take their place.
  bf16* const gathered = context.workspace.take<bf16>(rows.pass_rows * dim, "rows of the experts");
  bf16* const inner = context.workspace.take<bf16>(rows.pass_rows * inter, "inner rows of the experts");
  const int32_t all = args.experts_total > 0 ? args.experts_total : args.count;

  const bool words = takes_words(e.w1, Epilogue::kSwiglu);
  GroupedProduct first;
  first.x_words = words;
  first.y_words = words && takes_words(e.w2, Epilogue::kBF16);
  first.epilogue = Epilogue::kSwiglu;
  first.x = gathered;
  first.x_rows = rows.pass_rows;
  first.ldx = dim;
  first.weight[0] = e.w1;
  first.weight[1] = e.w3;
  first.groups = args.count;
  first.usual_rows = std::max<int64_t>(1, tokens * args.topk / all);
  first.y = inner;
  first.ldy = inter;
  first.limit = args.swiglu_limit;
  GroupedProduct second = first;
  second.x_words = first.y_words;
  second.y_words = false;
  second.epilogue = Epilogue::kBF16;
  second.x = inner;
  second.ldx = inter;
  second.weight[0] = e.w2;
  second.y = gathered;
  second.ldy = dim;
  for (int64_t pass = 0; pass < rows.passes; ++pass) {
    if (pass > 0) context.begin_part(OpPart::kDispatch);
    gather_expert_rows(context, rows, pass, args.x, dim, words, gathered);
    first.row_begin = second.row_begin = rows.begin_of(pass);
    first.row_weight = rows.row_weight + pass * rows.pass_rows;
    context.begin_part(OpPart::kExpertProducts);
    grouped_product(context, first);
    grouped_product(context, second);
    context.begin_part(OpPart::kCombine);
    combine_expert_rows(context, rows, pass, args.index, tokens, gathered, dim, args.sum);
  }
}

namespace {

// y = shared(x) where sum is null, else y = bf16(sum + shared(x)). quantised [rows, dim] and inner [rows, inter]:
// scratch.
void shared_rows(CudaContext& context, int64_t tokens, const SharedExpertArgs& args, bf16* quantised, bf16* inner,
                 const float* sum, bf16* y) {
  const ExpertWeights& e = args.weights;
  const int64_t dim = e.w1.k, inter = e.w1.n;
  act_quant_dequant_rows(context, args.x, dim, tokens, dim, quantised, dim);
  GroupedProduct product;
  product.epilogue = Epilogue::kSwiglu;
  product.x = quantised;
  product.x_rows = tokens;
  product.ldx = dim;
  product.weight[0] = e.w1;
  product.weight[1] = e.w3;
  product.parts = 1;  // with and without a sum alike
  product.y = inner;
  product.ldy = inter;
  product.limit = args.swiglu_limit;
  grouped_product(context, product);
  product.epilogue = sum != nullptr ? Epilogue::kAdd : Epilogue::kBF16;
  product.x = inner;
  product.ldx = inter;
  product.weight[0] = e.w2;
  product.y = y;
  product.ldy = dim;
  product.sum = sum;
  grouped_product(context, product);
}

// Steps of more rows fill the device with each operation.
constexpr int64_t kAheadRows = 512;

int64_t padded(int64_t elements) { return (elements * static_cast<int64_t>(sizeof(bf16)) + 255) / 256 * 256; }

void forget_ahead(CudaContext& context) {
  context.workspace.size += context.shared_ahead.bytes;
  context.shared_ahead = {};
}

}  // namespace

void begin_shared_expert(Context& base, const StepView& step, const SharedExpertArgs& args) {
  CudaContext& context = cuda(base);
  forget_ahead(context);  // of a step that an error ended
  if (step.rows == 0 || step.rows > kAheadRows || args.weights.w1.kind == WeightKind::kE2M1) return;
  const int64_t dim = args.weights.w1.k, inter = args.weights.w1.n;
  const int64_t wide = padded(step.rows * dim), bytes = 2 * wide + padded(step.rows * inter);
  CudaWorkspace& workspace = context.workspace;
  if (workspace.size % 256 != 0 || workspace.size - workspace.used < 4 * bytes) return;
  workspace.size -= bytes;
  std::byte* const at = workspace.base + workspace.size;
  auto* const y = reinterpret_cast<bf16*>(at + wide);
  context.shared_ahead = {.of = args.x, .rows = step.rows, .y = y, .bytes = bytes};
  const SideWork beside(context);
  shared_rows(context, step.rows, args, reinterpret_cast<bf16*>(at), reinterpret_cast<bf16*>(at + 2 * wide), nullptr,
              y);
}

void shared_expert(Context& base, const StepView& step, const SharedExpertArgs& args) {
  if (step.rows == 0) return;
  CudaContext& context = cuda(base);
  const int64_t dim = args.weights.w1.k, inter = args.weights.w1.n;
  if (context.shared_ahead.of == args.x && context.shared_ahead.rows == step.rows) {
    join_side_work(context);
    add_rows(context, args.sum, context.shared_ahead.y, step.rows * dim, args.y);
    forget_ahead(context);
    return;
  }
  const WorkspaceScope scope(context);
  bf16* const quantised = context.workspace.take<bf16>(step.rows * dim, "rows of the shared expert");
  bf16* const inner = context.workspace.take<bf16>(step.rows * inter, "inner rows of the shared expert");
  shared_rows(context, step.rows, args, quantised, inner, args.sum, args.y);
}

}  // namespace mdi::cuda
