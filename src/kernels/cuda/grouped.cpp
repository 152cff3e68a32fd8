#include "kernels/cuda/grouped.h"

#include "core/error.h"
#include "kernels/cuda/expert_rows.h"

namespace mdi::cuda {

template <WeightKind kKind, Epilogue kEpilogue, bool kSplit>
void launch_grouped(CudaContext& context, const GroupedProduct& product);  // grouped_<storage>.cu

// bf16 products of fewer columns are of small models: the plain kernel sums them in the oracle's order.
constexpr int64_t kShortest = 256;
// Products of up to kFewColumns columns and at least kLongest of K are split (wq_a, wkv, gate, compressors, index
// weights).
constexpr int64_t kFewColumns = 2048, kLongest = 2048;

bool fits_tensor_copies(WeightKind kind, Epilogue epilogue, int64_t n, int64_t k) {
  switch (kind) {
    case WeightKind::kE4M3:
      return epilogue != Epilogue::kF32 && n % 32 == 0 && k % 256 == 0;
    case WeightKind::kE2M1:
      return (epilogue == Epilogue::kBF16 || epilogue == Epilogue::kSwiglu) && n % 32 == 0 && k % 256 == 0;
    case WeightKind::kBF16:
      return (epilogue == Epilogue::kBF16 || epilogue == Epilogue::kF32 || epilogue == Epilogue::kVision) &&
             n % 8 == 0 && k % 8 == 0 && k >= kShortest;
    default:
      return false;
  }
}

int32_t parts_of_k(const GroupedProduct& g) {
  const LinearWeight& w = g.weight[0];
  const bool possible = g.row_begin == nullptr && g.groups == 1 &&
                        (g.epilogue == Epilogue::kBF16 || g.epilogue == Epilogue::kF32) &&
                        (w.kind == WeightKind::kE4M3 || w.kind == WeightKind::kBF16);
  if (!possible || w.k < kLongest) return 1;
  return w.n <= kFewColumns ? 8 : 1;
}

void grouped_product(CudaContext& context, const GroupedProduct& g) {
  if (g.x_rows == 0) return;
  const WeightKind kind = g.weight[0].kind;
  // A tile has one set of input columns.
  const bool columns_fit = g.n_per_column_group % (kind == WeightKind::kE2M1 ? 256 : 128) == 0;
  if (!columns_fit || !fits_tensor_copies(kind, g.epilogue, g.weight[0].n, g.weight[0].k)) {
    if (g.x_words || g.y_words) throw Error("cuda product", "word order is for shapes that fit the tensor copies");
    plain_product(context, g);
  } else if (kind == WeightKind::kE2M1 && !g.x_words) {
    const WorkspaceScope scope(context);
    const int64_t width =
        g.n_per_column_group > 0 ? g.weight[0].n / g.n_per_column_group * g.weight[0].k : g.weight[0].k;
    GroupedProduct ordered = g;
    bf16* const x = context.workspace.take<bf16>(g.x_rows * width, "rows in word order");
    word_order_rows(context, g.x, g.ldx, g.x_rows, width, x);
    ordered.x = x;
    ordered.ldx = width;
    ordered.x_words = true;
    grouped_product(context, ordered);
  } else if (g.parts == 0) {
    GroupedProduct split = g;
    split.parts = parts_of_k(g);
    grouped_product(context, split);
  } else if (kind == WeightKind::kE4M3) {
    switch (g.epilogue) {
      case Epilogue::kAdd:
        return launch_grouped<WeightKind::kE4M3, Epilogue::kAdd, false>(context, g);
      case Epilogue::kSwiglu:
        return launch_grouped<WeightKind::kE4M3, Epilogue::kSwiglu, false>(context, g);
      default:
        if (g.parts > 1) return launch_grouped<WeightKind::kE4M3, Epilogue::kBF16, true>(context, g);
        return launch_grouped<WeightKind::kE4M3, Epilogue::kBF16, false>(context, g);
    }
  } else if (kind == WeightKind::kE2M1) {
    if (g.epilogue == Epilogue::kSwiglu) {
      return launch_grouped<WeightKind::kE2M1, Epilogue::kSwiglu, false>(context, g);
    }
    launch_grouped<WeightKind::kE2M1, Epilogue::kBF16, false>(context, g);
  } else if (g.epilogue == Epilogue::kVision) {
    launch_grouped<WeightKind::kBF16, Epilogue::kVision, false>(context, g);
  } else if (g.epilogue == Epilogue::kF32) {
    if (g.parts > 1) return launch_grouped<WeightKind::kBF16, Epilogue::kF32, true>(context, g);
    launch_grouped<WeightKind::kBF16, Epilogue::kF32, false>(context, g);
  } else {
    if (g.parts > 1) return launch_grouped<WeightKind::kBF16, Epilogue::kBF16, true>(context, g);
    launch_grouped<WeightKind::kBF16, Epilogue::kBF16, false>(context, g);
  }
}

}  // namespace mdi::cuda
