#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

void linear_norm(Context& context, const StepView& step, const LinearNormArgs& args) {
  linear(context, args.x, step.rows, args.w, args.y);
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    bf16* row = args.y + t * args.w.n;
    rms_norm(row, args.norm, args.w.n, args.eps, row);
  });
}

void markov(Context& context, const MarkovArgs& args) {
  const int64_t rank = args.rank;
  const int64_t vocab = args.head.n;
  std::vector<bf16> embedded(static_cast<size_t>(args.sequences * rank));
  for (int64_t s = 0; s < args.sequences; ++s) {
    std::copy_n(args.embed + args.token[s] * rank, rank, embedded.data() + s * rank);
  }
  linear(context, embedded.data(), args.sequences, args.head, args.logits);
  const auto* proj = static_cast<const bf16*>(args.confidence_proj.data);
  cpu(context).pool.for_each(args.sequences, [&](int64_t s) {
    const float* base = args.base + s * args.base_stride;
    float* logits = args.logits + s * vocab;
    for (int64_t v = 0; v < vocab; ++v) logits[v] += base[v];
    const bf16* z = args.z + s * args.z_stride;
    const bf16* e = embedded.data() + s * rank;
    args.confidence[s] = lane_sum(args.dim, [&](int64_t i) { return to_float(z[i]) * to_float(proj[i]); }) +
                         lane_sum(rank, [&](int64_t i) { return to_float(e[i]) * to_float(proj[args.dim + i]); });
  });
}

}  // namespace mdi::cpu
