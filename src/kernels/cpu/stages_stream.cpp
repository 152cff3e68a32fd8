// The stages that work on the residual stream: embedding, hyper-connections, means of the copies, head.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

void embed(Context& context, const StepView& step, const EmbedArgs& args) {
  const int64_t dim = args.dim;
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    const int32_t replaced = args.override_of != nullptr ? args.override_of[t] : -1;
    const bf16* row = replaced >= 0 ? args.override_rows + replaced * dim : args.table + step.token[t] * dim;
    for (int c = 0; c < args.hc; ++c) {
      std::copy_n(row, dim, args.h + (t * args.hc + c) * dim);
      args.pre[t * args.hc + c] = c == 0 ? 1.0f : 0.0f;
    }
  });
}

void hc_collapse(Context& context, const StepView& step, const HcCollapseArgs& args) {
  const int64_t hc = args.hc;
  const int64_t width = hc * args.dim;
  const int64_t mixes = (2 + hc) * hc;
  const LinearWeight fn{.kind = WeightKind::kF32, .data = args.weights.fn, .scale = nullptr, .n = mixes, .k = width};
  thread_local std::vector<float> products;
  products.resize(static_cast<size_t>(step.rows * mixes));
  float* const m = products.data();
  linear(context, args.h, step.rows, fn, m);
  cpu(context).pool.for_each(step.rows, [&, m](int64_t t) {
    const bf16* h = args.h + t * width;
    const float r = hc_rms(h, width, args.norm_eps);
    for (int64_t i = 0; i < mixes; ++i) m[t * mixes + i] *= r;
    hc_split(m + t * mixes, args.weights.scale, args.weights.base, args.hc, args.sinkhorn_iters, args.eps,
             args.pre_out + t * hc, args.post + t * hc, args.comb + t * hc * hc);
    bf16* x = args.x + t * args.dim;
    hc_pre(h, args.pre_in + t * hc, args.hc, args.dim, x);
    rms_norm(x, args.norm, args.dim, args.norm_eps, x);
  });
}

void hc_expand(Context& context, const StepView& step, const HcExpandArgs& args) {
  const int64_t hc = args.hc;
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    bf16* h = args.h + t * hc * args.dim;
    hc_post(args.y + t * args.dim, h, args.post + t * hc, args.comb + t * hc * hc, args.hc, args.dim, h);
  });
}

void mean_copies(Context& context, const StepView& step, const MeanCopiesArgs& args) {
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    const bf16* h = args.h + t * args.hc * args.dim;
    for (int64_t d = 0; d < args.dim; ++d) {
      float sum = 0;
      for (int64_t c = 0; c < args.hc; ++c) sum += to_float(h[c * args.dim + d]);
      args.out[t * args.out_stride + d] = to_bf16(sum / static_cast<float>(args.hc));
    }
  });
}

void keep_rows(Context&, const KeepRowsArgs& args) {
  auto* data = static_cast<std::byte*>(args.data);
  for (int32_t i = 0; i < args.rows; ++i) {
    if (args.index[i] == i) continue;
    std::memcpy(data + i * args.row_bytes, data + args.index[i] * args.row_bytes, static_cast<size_t>(args.row_bytes));
  }
}

void head(Context& context, const StepView&, const HeadArgs& args) {
  thread_local std::vector<bf16> collapsed;
  collapsed.resize(static_cast<size_t>(int64_t{args.samples} * args.dim));
  bf16* const x = collapsed.data();
  cpu(context).pool.for_each(args.samples, [&, x](int64_t i) {
    const int64_t row = args.sample_rows[i];
    bf16* out = x + i * args.dim;
    hc_pre(args.h + row * args.hc * args.dim, args.pre + row * args.hc, args.hc, args.dim, out);
    if (args.z != nullptr) std::copy_n(out, args.dim, args.z + i * args.dim);
    rms_norm(out, args.norm, args.dim, args.eps, out);
  });
  linear(context, x, args.samples, args.head, args.logits);
}

}  // namespace mdi::cpu
