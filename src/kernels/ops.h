// The operations that the network is made of. Each one's maths, shapes and rounding points stand with its arguments, in
// the headers that end in _args.h.
//
// An operation is a stage: what one pass over memory can do on a GPU. There are two implementations behind one table of
// functions: kernels/cpu (the oracle: a composition of the small reference functions of its headers) and kernels/cuda.
//
// Rules for every operation
//  - Pointers are memory of the context's device. Matrices are dense and row-major. T is StepView::rows; T = 0 is
//  legal.
//  - A row's result does not depend on the other rows, on T, or on which kernel the stage picked.
//  - Reads nothing that the contract does not name: other rows, index -1, rows past a count and padding may hold NaN.
//  - bf16(x), e4m3(x), e2m1(x) mean rounding to nearest even; everything else is fp32. Section numbers are those of the
//    model specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "core/tensor.h"
#include "kernels/attention_args.h"
#include "kernels/commit_args.h"
#include "kernels/draft_args.h"
#include "kernels/expert_args.h"
#include "kernels/operands.h"
#include "kernels/stream_args.h"
#include "kernels/vision_args.h"

namespace mdi {

struct Ops;
struct SampleArgs;       // kernels/sample.h
struct PlaceTokensArgs;  // likewise

inline constexpr int kMaxDraftRows = 16;  // new rows a sequence of a draft block

// Called with a stage's inner rounding points (host memory, valid during the call) when a test or `mdi check` asks.
using Tap = std::function<void(std::string_view name, int layer, const TensorView& value)>;

// The parts of an operation that are stages of their own to whoever measures (engine/stages.h).
enum class OpPart : uint8_t { kIndexQueries, kIndexScores, kIndexSelection, kDispatch, kExpertProducts, kCombine };

// What an operation runs on: a thread pool or a stream with its workspace. Backends derive from it.
struct Context {
  const Ops* ops = nullptr;
  Tap tap;         // empty: nothing is dumped
  int layer = -1;  // for the tap and for error messages
  // Called by the calling thread where a part of an operation begins; empty: nobody measures. It may put work on the
  // context, as a mark, but not wait for it.
  std::function<void(OpPart)> on_part;
  void begin_part(OpPart part) const {
    if (on_part) on_part(part);
  }
  virtual ~Context() = default;
};

// ---- the table ------------------------------------------------------------------------------------------------------
struct Ops {
  std::string_view name;  // "cpu", "cuda"

  void* (*allocate)(Context&, int64_t bytes);  // zeroed; throws mdi::Error when there is no room
  void (*release)(Context&, void*);
  void (*copy_in)(Context&, void* device, const void* host, int64_t bytes);
  void (*copy_out)(Context&, void* host, const void* device, int64_t bytes);
  // Host memory that copy() reaches without staging (pinned, with a GPU). Throws mdi::Error when there is no room.
  void* (*allocate_host)(Context&, int64_t bytes);
  void (*release_host)(Context&, void*);
  // Device memory to device memory, or to or from allocate_host's. Runs in the order of the context's other work and
  // does not wait for it: whoever looks at the host memory himself calls copy_out of something first. No overlap.
  void (*copy)(Context&, void* to, const void* from, int64_t bytes);

  void (*embed)(Context&, const StepView&, const EmbedArgs&);
  void (*engram_hash)(Context&, const StepView&, const EngramHashArgs&);
  void (*engram)(Context&, const StepView&, const EngramArgs&);
  void (*hc_collapse)(Context&, const StepView&, const HcCollapseArgs&);
  void (*hc_expand)(Context&, const StepView&, const HcExpandArgs&);
  void (*attention_input)(Context&, const StepView&, const AttentionInputArgs&);
  void (*compress)(Context&, const StepView&, const CompressArgs&);
  void (*index_select)(Context&, const StepView&, const IndexSelectArgs&);
  void (*sparse_attention)(Context&, const StepView&, const SparseAttentionArgs&);
  void (*attention_output)(Context&, const StepView&, const AttentionOutputArgs&);
  void (*route)(Context&, const StepView&, const RouteArgs&);
  void (*routed_experts)(Context&, const StepView&, const RoutedExpertsArgs&);
  void (*shared_expert)(Context&, const StepView&, const SharedExpertArgs&);
  void (*mean_copies)(Context&, const StepView&, const MeanCopiesArgs&);
  void (*head)(Context&, const StepView&, const HeadArgs&);
  void (*linear_norm)(Context&, const StepView&, const LinearNormArgs&);
  void (*window_rows)(Context&, const StepView&, const WindowRowsArgs&);
  void (*markov)(Context&, const MarkovArgs&);
  void (*keep_rows)(Context&, const KeepRowsArgs&);
  void (*commit_ring)(Context&, const StepView&, const CommitRingArgs&);
  void (*commit_pending)(Context&, const StepView&, const CommitPendingArgs&);
  void (*commit_history)(Context&, const StepView&, const CommitHistoryArgs&);
  void (*sample)(Context&, const SampleArgs&);
  void (*place_tokens)(Context&, const PlaceTokensArgs&);

  // Null in a backend that does not run the vision tower.
  void (*vision_linear)(Context&, const VisionLinearArgs&);
  void (*vision_norm)(Context&, const VisionNormArgs&);
  void (*vision_attention)(Context&, const VisionAttentionArgs&);
  void (*vision_gate)(Context&, const VisionGateArgs&);
  void (*vision_windows)(Context&, const VisionWindowsArgs&);

  // Keeps the operations that `work` calls, instead of running them, to run them again with the same arguments: the
  // arrays that device pointers name are read then, those of the host (experts) and all numbers are kept as they are.
  // `work` may allocate nothing and copy nothing to or from the host, and its operations must have run before with the
  // same shapes. Throws what it throws. Null in a backend that keeps nothing.
  void* (*record)(Context&, const std::function<void()>& work) = nullptr;
  void (*run_recorded)(Context&, void* recorded) = nullptr;  // in the order of the context's other work
  void (*release_recorded)(Context&, void* recorded) = nullptr;

  // Begins a shared_expert that follows with the same x and weights, after other operations that leave x alone: what
  // does not need `sum` may run beside them. Null in a backend that runs one thing at a time.
  void (*begin_shared_expert)(Context&, const StepView&, const SharedExpertArgs&) = nullptr;

  // A mark notes a place in the order of the context's work; wait_mark returns when all that was asked for before
  // set_mark is done, and what was asked for later may still run. One that was never set is never waited for. Null in a
  // backend whose operations are done when they return.
  void* (*make_mark)(Context&) = nullptr;
  void (*set_mark)(Context&, void* mark) = nullptr;
  void (*wait_mark)(Context&, void* mark) = nullptr;
  void (*release_mark)(Context&, void* mark) = nullptr;

  // A time mark is a mark that knows when the context's work got there. Setting one allocates nothing and waits for
  // nothing; set while work is recorded, it is set anew by each run. passed_mark: whether the work got there; does not
  // wait. seconds_between: of two that were passed, the earlier one first. Null where make_mark is.
  void* (*make_time_mark)(Context&) = nullptr;
  bool (*passed_mark)(Context&, void* mark) = nullptr;
  double (*seconds_between)(Context&, void* from, void* to) = nullptr;
};

}  // namespace mdi
