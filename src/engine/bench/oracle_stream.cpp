// The oracle on what moves the residual stream: embedding, hyper-connections, head, engram.
#include "engine/bench/oracle_parts.h"

#ifdef MDI_WITH_CUDA

#include <algorithm>

namespace mdi::bench {

void Oracle::check(const StepView&, const EmbedArgs& a, const Run& run) {
  const Borrowed borrowed(*this);
  run();
  EmbedArgs host = a;
  std::vector<bf16> table(static_cast<size_t>(kRows) * static_cast<size_t>(a.dim));
  StepView view = view_;
  std::vector<int32_t> tokens(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    tokens[i] = static_cast<int32_t>(i);
    gpu_.backend->copy_out(gpu_, table.data() + i * static_cast<size_t>(a.dim), a.table + int64_t{token_[i]} * a.dim,
                           int64_t{a.dim} * 2);
  }
  view.token = tokens.data();
  host.table = table.data();
  host.override_rows = nullptr;
  host.override_of = nullptr;
  std::vector<bf16> h(static_cast<size_t>(kRows) * static_cast<size_t>(a.hc * a.dim));
  std::vector<float> pre(static_cast<size_t>(kRows * a.hc));
  host.h = h.data();
  host.pre = pre.data();
  cpu_->ops->embed(*cpu_, view, host);
  compare("embed h", rows(a.h, int64_t{a.hc} * a.dim), h, a.dim, {});
  compare("embed pre", rows(a.pre, a.hc), pre, a.hc, {});
}

void Oracle::check(const StepView&, const HcCollapseArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  const int64_t hc = a.hc, mixes = (2 + hc) * hc;
  HcCollapseArgs host = a;
  const auto h = rows(a.h, hc * a.dim);
  const auto pre_in = rows(a.pre_in, hc);
  host.h = h.data();
  host.pre_in = pre_in.data();
  host.weights = {.fn = keep(a.weights.fn, mixes * hc * a.dim),
                  .scale = keep(a.weights.scale, 3),
                  .base = keep(a.weights.base, mixes)};
  host.norm = keep(a.norm, a.dim);
  std::vector<bf16> x(static_cast<size_t>(kRows) * static_cast<size_t>(a.dim));
  std::vector<float> pre(static_cast<size_t>(kRows * hc)), post(pre.size()), comb(pre.size() * static_cast<size_t>(hc));
  host.x = x.data();
  host.pre_out = pre.data();
  host.post = post.data();
  host.comb = comb.data();
  run();
  cpu_->ops->hc_collapse(*cpu_, view_, host);
  compare("hc collapse x", rows(a.x, a.dim), x, a.dim, {});
  compare("hc collapse pre", rows(a.pre_out, hc), pre, hc, {.ulps = 0, .row = 4e-5});
  compare("hc collapse post", rows(a.post, hc), post, hc, {.ulps = 0, .row = 4e-5});
  compare("hc collapse comb", rows(a.comb, hc * hc), comb, hc * hc, {.ulps = 0, .row = 4e-5});
}

void Oracle::check(const StepView&, const HcExpandArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  HcExpandArgs host = a;
  const int64_t hc = a.hc;
  const auto y = rows(a.y, a.dim);
  const auto post = rows(a.post, hc);
  const auto comb = rows(a.comb, hc * hc);
  auto h = rows(static_cast<const bf16*>(a.h), hc * a.dim);
  host.y = y.data();
  host.post = post.data();
  host.comb = comb.data();
  host.h = h.data();
  run();
  cpu_->ops->hc_expand(*cpu_, view_, host);
  compare("hc expand h", rows(static_cast<const bf16*>(a.h), hc * a.dim), h, a.dim, {});
}

void Oracle::check(const StepView&, const HeadArgs& a, const Run& run) {
  const Borrowed borrowed(*this);
  run();
  const auto sample_rows = fetch(a.sample_rows, a.samples);
  std::vector<bf16> h;
  std::vector<float> pre;
  std::vector<int32_t> index;
  for (const int32_t row : sample_rows) {
    index.push_back(static_cast<int32_t>(index.size()));
    const auto row_h = fetch(a.h + int64_t{row} * a.hc * a.dim, int64_t{a.hc} * a.dim);
    const auto row_pre = fetch(a.pre + int64_t{row} * a.hc, a.hc);
    h.insert(h.end(), row_h.begin(), row_h.end());
    pre.insert(pre.end(), row_pre.begin(), row_pre.end());
  }
  HeadArgs host = a;
  host.sample_rows = index.data();
  host.h = h.data();
  host.pre = pre.data();
  host.norm = keep(a.norm, a.dim);
  host.head = weight(a.head);
  host.z = nullptr;
  std::vector<float> logits(static_cast<size_t>(a.samples * a.head.n));
  host.logits = logits.data();
  StepView view = view_;
  view.rows = a.samples;
  cpu_->ops->head(*cpu_, view, host);
  compare("head logits", fetch(static_cast<const float*>(a.logits), a.samples * a.head.n), logits, a.head.n,
          {.ulps = 0, .row = 1e-4});
}

void Oracle::check(const StepView&, const EngramHashArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  run();
  const int32_t depth = a.ngram - 1, columns = depth * a.heads;
  const auto vocab = *std::max_element(step_.token.begin(), step_.token.end()) + 1;
  EngramHashArgs host = a;
  host.token_map = keep(a.token_map, vocab);
  host.multipliers = keep(a.multipliers, a.ngram);
  host.primes = keep(a.primes, columns);
  host.offsets = keep(a.offsets, columns);
  // A pair's history: the rows before it, then the slot's.
  const auto slot = fetch(a.history + int64_t{step_.seq_slot[0]} * depth, depth);
  std::vector<int32_t> history;
  for (size_t i = 0; i < kRows; i += 2) {
    for (int32_t j = 0; j < depth; ++j) {
      const int32_t row = sampled_[i] - 1 - j;
      history.push_back(row >= 0 ? host.token_map[step_.token[static_cast<size_t>(row)]]
                                 : slot[static_cast<size_t>(-1 - row)]);
    }
  }
  host.history = history.data();
  std::vector<int32_t> compressed(kRows);
  std::vector<int64_t> found(static_cast<size_t>(kRows * columns));
  host.compressed = compressed.data();
  host.rows = found.data();
  cpu_->ops->engram_hash(*cpu_, view_, host);
  compare("engram hash compressed", rows(static_cast<const int32_t*>(a.compressed), 1), compressed, 1, {});
  compare("engram hash rows", rows(static_cast<const int64_t*>(a.rows), columns), found, columns, {});
}

void Oracle::check(const StepView&, const EngramArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  EngramArgs host = a;
  auto h = rows(static_cast<const bf16*>(a.h), int64_t{a.hc} * a.dim);
  // The rows that are looked up, in a table of their own.
  auto index = rows(a.rows, a.columns);
  const int64_t scales = a.head_dim / 32;
  std::vector<e4m3> table(index.size() * static_cast<size_t>(a.head_dim));
  std::vector<e8m0> table_scale(index.size() * static_cast<size_t>(scales));
  for (size_t i = 0; i < index.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    gpu_.backend->copy_out(gpu_, table.data() + at * a.head_dim, a.table + index[i] * a.head_dim, a.head_dim);
    gpu_.backend->copy_out(gpu_, table_scale.data() + at * scales, a.table_scale + index[i] * scales, scales);
    index[i] = at;
  }
  host.rows = index.data();
  host.table = table.data();
  host.table_scale = table_scale.data();
  host.wkv = weight(a.wkv);
  host.q_weight = keep(a.q_weight, int64_t{a.hc} * a.dim);
  host.k_weight = keep(a.k_weight, int64_t{a.hc} * a.dim);
  host.h = h.data();
  run();
  cpu_->ops->engram(*cpu_, view_, host);
  compare("engram h", rows(static_cast<const bf16*>(a.h), int64_t{a.hc} * a.dim), h, a.dim, {.ulps = 2, .row = 4e-3});
}

}  // namespace mdi::bench

#endif
