// The oracle on the experts: gate, routed with the ranks' sums, shared.
#include "engine/bench/oracle_parts.h"

#ifdef MDI_WITH_CUDA

#include <set>

namespace mdi::bench {

void Oracle::check(const StepView&, const RouteArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  run();
  RouteArgs host = a;
  host.experts = static_cast<int32_t>(a.gate.n);
  const auto x = rows(a.x, a.gate.k);
  host.x = x.data();
  host.gate = weight(a.gate);
  host.bias = keep(a.bias, a.gate.n);
  host.bias_vl = nullptr;
  std::vector<int32_t> index(static_cast<size_t>(kRows * a.topk));
  std::vector<float> weights(index.size());
  host.index = index.data();
  host.weight = weights.data();
  cpu_->ops->route(*cpu_, view_, host);
  // Sums of another order may swap two experts whose scores are nearly the same.
  compare("gate experts", rows(static_cast<const int32_t*>(a.index), a.topk), index, a.topk,
          {.ulps = 0, .row = 0, .share = 0.01});
  compare("gate weights", rows(static_cast<const float*>(a.weight), a.topk), weights, a.topk,
          {.ulps = 0, .row = 4e-5, .share = 0.01});
}

void Oracle::check(const StepView& step, const RoutedExpertsArgs& a, const Run& run) {
  if (expert_layers_.count(gpu_.layer) == 0) return run();
  const Borrowed borrowed(*this);
  run();
  const ExchangeLoad& load = gpu_.load;
  const int64_t dim = a.experts[0].w1.k;
  // Rows of all ranks in turn.
  std::vector<bf16> x;
  std::vector<int32_t> index;
  std::vector<float> weights, got, got_sum, want_sum(static_cast<size_t>(kRows * dim));
  const auto append = [this](auto& to, const auto* device, int64_t count) {
    const auto part = fetch(device, count);
    to.insert(to.end(), part.begin(), part.end());
  };
  for (size_t i = 0; i < kRows; ++i) {
    const int64_t row = sampled_[i] + static_cast<int64_t>(i) % load.ranks * step.rows;
    append(x, static_cast<const bf16*>(load.gathered) + row * dim, dim);
    append(index, load.index + (gpu_.layer * load.rows + row) * a.topk, a.topk);
    append(weights, load.weight + row * a.topk, a.topk);
    append(got, static_cast<const float*>(load.partial) + row * dim, dim);
    // What the ranks' partial sums add up to, for this rank's rows.
    append(got_sum, static_cast<const float*>(a.sum) + sampled_[i] * dim, dim);
    for (int32_t r = 0; r < load.ranks; ++r) {
      const auto part =
          fetch(static_cast<const float*>(load.partial) + (sampled_[i] + int64_t{r} * step.rows) * dim, dim);
      float* const to = want_sum.data() + static_cast<int64_t>(i) * dim;
      for (int64_t d = 0; d < dim; ++d)
        to[d] = r == 0 ? part[static_cast<size_t>(d)] : to[d] + part[static_cast<size_t>(d)];
    }
  }
  std::vector<ExpertWeights> experts(static_cast<size_t>(load.count), a.experts[0]);
  std::set<int32_t> used;
  for (const int32_t e : index) {
    if (e >= load.first && e < load.first + load.count) used.insert(e - load.first);
  }
  for (const int32_t e : used) {
    const ExpertWeights& w = a.experts[e];
    experts[static_cast<size_t>(e)] = {.w1 = weight(w.w1), .w2 = weight(w.w2), .w3 = weight(w.w3)};
  }
  std::vector<float> sum(static_cast<size_t>(kRows * dim));
  RoutedExpertsArgs host = a;
  host.first = load.first;
  host.count = load.count;
  host.x = x.data();
  host.index = index.data();
  host.weight = weights.data();
  host.experts = experts.data();
  host.sum = sum.data();
  cpu_->ops->routed_experts(*cpu_, view_, host);
  compare("routed experts sum", got, sum, dim, kQuantised);
  compare("routed experts, ranks' sums", got_sum, want_sum, dim, {});
}

void Oracle::check(const StepView&, const SharedExpertArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  const int64_t dim = a.weights.w1.k;
  SharedExpertArgs host = a;
  const auto x = rows(a.x, dim);
  const auto sum = rows(a.sum, dim);
  host.x = x.data();
  host.sum = sum.data();
  host.weights = {.w1 = weight(a.weights.w1), .w2 = weight(a.weights.w2), .w3 = weight(a.weights.w3)};
  std::vector<bf16> y(static_cast<size_t>(kRows * dim));
  host.y = y.data();
  run();
  cpu_->ops->shared_expert(*cpu_, view_, host);
  compare("shared expert y", rows(static_cast<const bf16*>(a.y), dim), y, dim, kQuantised);
}

}  // namespace mdi::bench

#endif
