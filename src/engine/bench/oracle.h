// Checks a step's operations against the CPU backend while it runs: of every operation of the chosen layers, 64 rows of
// the full shape, from the same inputs.
//
// The rows are 32 pairs of neighbours, each a sequence of its own to the oracle: what lies before a pair is given to it
// as a sequence's state (ring, history). That a row's result does not depend on how a sequence is cut into steps is
// part of what is checked.
#pragma once

#ifdef MDI_WITH_CUDA

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "engine/bench/compare.h"
#include "engine/bench/context.h"
#include "kernels/cpu/backend.h"
#include "model/step.h"

namespace mdi::bench {

class Oracle {
 public:
  // `step` has one sequence of at least 64 rows that starts at an even position. Experts are checked at
  // `expert_layers`, the rest at `layers`; what is outside the layers always.
  Oracle(BenchContext& gpu, const Step& step, int64_t pool_blocks, std::set<int> layers, std::set<int> expert_layers);

  // Each runs the operation and, where it is wanted, compares.
  using Run = std::function<void()>;
  void check(const StepView&, const EmbedArgs&, const Run&);
  void check(const StepView&, const EngramHashArgs&, const Run&);
  void check(const StepView&, const EngramArgs&, const Run&);
  void check(const StepView&, const HcCollapseArgs&, const Run&);
  void check(const StepView&, const HcExpandArgs&, const Run&);
  void check(const StepView&, const AttentionInputArgs&, const Run&);
  void check(const StepView&, const CompressArgs&, const Run&);
  void check(const StepView&, const IndexSelectArgs&, const Run&);
  void check(const StepView&, const SparseAttentionArgs&, const Run&);
  void check(const StepView&, const AttentionOutputArgs&, const Run&);
  void check(const StepView&, const RouteArgs&, const Run&);
  void check(const StepView&, const RoutedExpertsArgs&, const Run&);
  void check(const StepView&, const SharedExpertArgs&, const Run&);
  void check(const StepView&, const HeadArgs&, const Run&);
  // The rest is run only. Commits are copies, which `mdi check` and the kernel checks compare bit for bit; the product
  // of `window_rows` is not in the exact step, the only one that is checked.
  template <class Args>
  void check(const StepView&, const Args&, const Run& run) {
    run();
  }

  const std::vector<Checked>& results() const { return results_; }
  double seconds() const { return seconds_; }

 private:
  friend struct Borrowed;
  bool wanted() const;
  template <class T>
  std::vector<T> fetch(const T* device, int64_t count) const;
  // The sampled rows of a device array [T, width].
  template <class T>
  std::vector<T> rows(const T* device, int64_t width) const;
  template <class T>
  const T* keep(const T* device, int64_t count);
  LinearWeight weight(const LinearWeight& w);
  RopeTable rope(const RopeTable& table);
  SourceCache pool(const SourceCache& device, bool whole);
  template <class T>
  void compare(const char* what, const std::vector<T>& got, const std::vector<T>& want, int64_t columns, Tolerance);
  void add(Checked checked);
  void finish();

  BenchContext& gpu_;
  const Step& step_;
  int64_t pool_blocks_;
  std::set<int> layers_, expert_layers_;
  std::unique_ptr<CpuContext> cpu_;
  std::vector<int32_t> sampled_;  // rows, ascending

  // The sampled rows as a step of the oracle.
  std::vector<int32_t> token_, position_, seq_of_row_, seq_slot_, seq_start_, seq_row_, seq_count_, seq_floor_, table_;
  std::vector<uint8_t> dead_;
  StepView view_;

  std::vector<std::unique_ptr<std::byte[]>> kept_;  // of the operation that is being checked
  std::vector<Checked> results_;
  double seconds_ = 0;
};

// How an operation is called in lists.
inline const char* op_name(const EmbedArgs&) { return "embed"; }
inline const char* op_name(const EngramHashArgs&) { return "engram hash"; }
inline const char* op_name(const EngramArgs&) { return "engram"; }
inline const char* op_name(const HcCollapseArgs&) { return "hc collapse"; }
inline const char* op_name(const HcExpandArgs&) { return "hc expand"; }
inline const char* op_name(const AttentionInputArgs&) { return "attention input"; }
inline const char* op_name(const WindowRowsArgs&) { return "window rows"; }
inline const char* op_name(const CompressArgs&) { return "compress"; }
inline const char* op_name(const IndexSelectArgs&) { return "index select"; }
inline const char* op_name(const SparseAttentionArgs&) { return "sparse attention"; }
inline const char* op_name(const AttentionOutputArgs&) { return "attention output"; }
inline const char* op_name(const RouteArgs&) { return "gate"; }
inline const char* op_name(const RoutedExpertsArgs&) { return "routed experts"; }
inline const char* op_name(const SharedExpertArgs&) { return "shared expert"; }
inline const char* op_name(const HeadArgs&) { return "head"; }
inline const char* op_name(const CommitRingArgs&) { return "commit ring"; }
inline const char* op_name(const CommitPendingArgs&) { return "commit pending"; }
inline const char* op_name(const CommitHistoryArgs&) { return "commit history"; }

}  // namespace mdi::bench

#endif
