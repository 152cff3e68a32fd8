#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

void route(Context& context, const StepView& step, const RouteArgs& args) {
  const int64_t experts = args.experts;
  std::vector<float> products(static_cast<size_t>(step.rows * experts));
  std::vector<float> biased(products.size());
  linear(context, args.x, step.rows, args.gate, products.data());
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    const float* bias = step.dead[t] != 0 && args.bias_vl != nullptr ? args.bias_vl : args.bias;
    gate_select(products.data() + t * experts, bias, args.experts, args.topk, args.route_scale, args.gate_temp,
                biased.data() + t * experts, args.index + t * args.topk, args.weight + t * args.topk);
  });
  tap(context, "gate_scores_biased", DType::kF32, biased.data(), {step.rows, experts});
}

namespace {

// w2(swiglu(w1 x, w3 x)) for m rows that are already on the act_quant grid where the weights ask for it; out [m, dim].
struct ExpertScratch {
  std::vector<bf16> gate, up, out;
};
void run_expert(Context& context, const bf16* quantised, int64_t m, const ExpertWeights& e, float limit,
                const float* weight, ExpertScratch& s) {
  const auto inner = static_cast<size_t>(m * e.w1.n);
  s.gate.resize(inner);
  s.up.resize(inner);
  s.out.resize(static_cast<size_t>(m * e.w2.n));
  ThreadPool& pool = cpu(context).pool;
  for (const auto& [w, y] : {std::pair{&e.w1, s.gate.data()}, std::pair{&e.w3, s.up.data()}}) {
    gemm(pool, {.x = quantised, .m = m, .ldx = w->k, .w = *w, .y_f32 = nullptr, .y_bf16 = y, .ldy = w->n});
  }
  pool.for_each(m, [&](int64_t i) {
    bf16* gate = s.gate.data() + i * e.w1.n;
    swiglu(gate, s.up.data() + i * e.w1.n, e.w1.n, limit, weight != nullptr ? weight[i] : 1.0f, gate);
  });
  linear(context, s.gate.data(), m, e.w2, s.out.data());
}

}  // namespace

void routed_experts(Context& context, const StepView& step, const RoutedExpertsArgs& args) {
  if (step.rows == 0) return;
  const int64_t dim = args.experts[0].w1.k;
  ThreadPool& pool = cpu(context).pool;
  context.begin_part(OpPart::kDispatch);
  std::fill_n(args.sum, step.rows * dim, 0.0f);
  std::vector<bf16> quantised(static_cast<size_t>(step.rows * dim));
  quantised_rows(context, args.x, step.rows, dim, quantised.data());

  struct Pair {
    int32_t row;
    float weight;
  };
  std::vector<std::vector<Pair>> chosen(static_cast<size_t>(args.count));
  for (int32_t t = 0; t < step.rows; ++t) {
    for (int n = 0; n < args.topk; ++n) {
      const int64_t at = int64_t{t} * args.topk + n;
      const int32_t local = args.index[at] - args.first;
      if (local < 0 || local >= args.count) continue;
      chosen[static_cast<size_t>(local)].push_back({t, args.weight[at]});
    }
  }
  std::vector<bf16> gathered;
  std::vector<float> weights;
  ExpertScratch scratch;
  for (size_t e = 0; e < chosen.size(); ++e) {  // ascending ids: the order of the sum
    const auto m = static_cast<int64_t>(chosen[e].size());
    if (m == 0) continue;
    context.begin_part(OpPart::kDispatch);
    gathered.resize(static_cast<size_t>(m * dim));
    weights.clear();
    for (int64_t i = 0; i < m; ++i) {
      const Pair& pair = chosen[e][static_cast<size_t>(i)];
      std::copy_n(quantised.data() + pair.row * dim, dim, gathered.data() + i * dim);
      weights.push_back(pair.weight);
    }
    context.begin_part(OpPart::kExpertProducts);
    run_expert(context, gathered.data(), m, args.experts[e], args.swiglu_limit, weights.data(), scratch);
    context.begin_part(OpPart::kCombine);
    pool.for_each(m, [&](int64_t i) {
      float* sum = args.sum + chosen[e][static_cast<size_t>(i)].row * dim;
      const bf16* y = scratch.out.data() + i * dim;
      for (int64_t d = 0; d < dim; ++d) sum[d] += to_float(y[d]);
    });
  }
}

void shared_expert(Context& context, const StepView& step, const SharedExpertArgs& args) {
  if (step.rows == 0) return;
  const int64_t dim = args.weights.w1.k;
  std::vector<bf16> quantised(static_cast<size_t>(step.rows * dim));
  quantised_rows(context, args.x, step.rows, dim, quantised.data());
  ExpertScratch scratch;
  run_expert(context, quantised.data(), step.rows, args.weights, args.swiglu_limit, nullptr, scratch);
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    for (int64_t i = t * dim; i < (t + 1) * dim; ++i)
      args.y[i] = to_bf16(args.sum[i] + to_float(scratch.out[static_cast<size_t>(i)]));
  });
}

}  // namespace mdi::cpu
