#include <algorithm>

#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

namespace {
constexpr int kMaxNgram = 8;
}

void engram_hash(Context&, const StepView& step, const EngramHashArgs& args) {
  const int64_t columns = int64_t{args.ngram - 1} * args.heads;
  for (int64_t t = 0; t < step.rows; ++t) {
    args.compressed[t] = step.dead[t] != 0 ? -1 : args.token_map[step.token[t]];
  }
  for (int64_t t = 0; t < step.rows; ++t) {
    const int32_t s = step.seq_of_row[t];
    const int32_t* history = args.history + int64_t{step.seq_slot[s]} * (args.ngram - 1);
    int32_t around[kMaxNgram];
    for (int j = 0; j < args.ngram; ++j) {
      const int64_t row = t - j;
      const int64_t first = step.seq_row[s];
      around[j] = row >= first ? args.compressed[row] : history[first - row - 1];
    }
    engram_hash_row(around, args.ngram, args.heads, args.pad, args.multipliers, args.primes, args.offsets,
                    args.rows + t * columns);
  }
}

void engram(Context& context, const StepView& step, const EngramArgs& args) {
  const int64_t width = int64_t{args.columns} * args.head_dim;
  const int64_t out = int64_t{args.hc + 1} * args.dim;
  thread_local std::vector<bf16> lookups, projections;
  lookups.resize(static_cast<size_t>(step.rows * width));
  projections.resize(static_cast<size_t>(step.rows * out));
  bf16* const e = lookups.data();
  bf16* const kv = projections.data();
  cpu(context).pool.for_each(step.rows, [&, e](int64_t t) {
    engram_lookup(args.rows + t * args.columns, args.columns, args.head_dim, args.table, args.table_scale,
                  e + t * width);
  });
  linear(context, e, step.rows, args.wkv, kv);
  cpu(context).pool.for_each(step.rows, [&, kv](int64_t t) {
    if (step.dead[t] != 0) return;
    engram_gate_add(kv + t * out, args.q_weight, args.k_weight, args.hc, args.dim, args.eps,
                    args.h + t * args.hc * args.dim);
  });
}

void commit_history(Context&, const StepView& step, const CommitHistoryArgs& args) {
  for (int s = 0; s < step.sequences; ++s) {
    int32_t* history = args.history + int64_t{step.seq_slot[s]} * args.depth;
    const int32_t accepted = args.accepted[s];
    for (int i = args.depth - 1; i >= 0; --i) {
      // The value that is i tokens before the newest: a new token, or one that moves back by `accepted`.
      history[i] = i < accepted ? args.compressed[step.seq_row[s] + accepted - 1 - i] : history[i - accepted];
    }
  }
}

}  // namespace mdi::cpu
