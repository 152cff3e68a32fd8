// sparse_attention of ops.h (spec 6.7): the keys of a query, and which kernel runs.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/stages.h"

namespace mdi::cuda {

void sparse_attention(Context& base, const StepView& step, const SparseAttentionArgs& args) {
  if (step.rows == 0) return;
  AttentionParams p{.step = step, .args = args};
  if (args.selected == nullptr || args.whole_block) p.args.topk = 0;
  p.slots = args.ring.window + (args.whole_block ? kMaxDraftRows : p.args.topk);
  p.window_bytes = args.ring.row.bytes();
  if (fits_attention_wgmma(p)) {
    attention_wgmma(cuda(base), p);
  } else {
    attention_generic(cuda(base), p);
  }
}

}  // namespace mdi::cuda
