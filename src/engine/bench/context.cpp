#include "engine/bench/context.h"

#ifdef MDI_WITH_CUDA

#include "engine/bench/oracle.h"
#include "kernels/cuda/rank_sums.h"

namespace mdi::bench {

namespace {

BenchContext& bench(Context& context) { return static_cast<BenchContext&>(context); }

void copy_in(Context& base, void* device, const void* host, int64_t bytes) {
  BenchContext& context = bench(base);
  if (context.copies) context.backend->copy_in(base, device, host, bytes);
}

// Runs an operation of the backend inside its stage, under whatever watches.
template <class Args>
void watched(BenchContext& context, const StepView& step, const Args& args,
             void (*run)(BenchContext&, const StepView&, const Args&)) {
  context.begin(stage_of(args), step.rows);
  if (context.recorder) {
    context.recorder(stage_of(args), context.layer, op_name(args),
                     [&context, step, args, run] { run(context, step, args); });
  }
  if (context.oracle != nullptr) {
    context.oracle->check(step, args, [&] { run(context, step, args); });
  } else {
    run(context, step, args);
  }
}

template <auto kMember, class Args>
void run_backend(BenchContext& context, const StepView& step, const Args& args) {
  (context.backend->*kMember)(context, step, args);
}

template <auto kMember, class Args>
void plain(Context& base, const StepView& step, const Args& args) {
  watched<Args>(bench(base), step, args, run_backend<kMember, Args>);
}

void keep_rows(Context& base, const KeepRowsArgs& args) {
  BenchContext& context = bench(base);
  if (context.clock != nullptr) context.clock->begin(stage_of(args));
  context.backend->keep_rows(base, args);
}

// The model of a rank has its own experts only; the gate knows all.
void run_route(BenchContext& context, const StepView& step, const RouteArgs& args) {
  RouteArgs all = args;
  all.experts = static_cast<int32_t>(args.gate.n);
  context.backend->route(context, step, all);
}

void run_routed(BenchContext& context, const StepView& step, const RoutedExpertsArgs& args) {
  const ExchangeLoad& load = context.load;
  const int64_t dim = args.experts[0].w1.k, own = int64_t{step.rows} * dim;
  StepView wide = step;
  wide.rows = step.rows * load.ranks;
  RoutedExpertsArgs all = args;
  all.first = load.first;
  all.count = load.count;
  all.experts_total = load.count * load.ranks;
  all.x = load.gathered;
  all.index = load.index + context.layer * load.rows * args.topk;
  all.weight = load.weight;
  all.sum = load.partial;
  context.begin(Stage::kExchange, step.rows);
  MDI_CUDA(cudaMemcpyAsync(load.gathered, args.x, static_cast<size_t>(own) * sizeof(bf16), cudaMemcpyDeviceToDevice,
                           context.stream));
  context.backend->routed_experts(context, wide, all);
  context.begin(Stage::kExchange, step.rows);
  cuda::add_rank_sums(context, load.partial, load.ranks, own, args.sum);
}

void route(Context& base, const StepView& step, const RouteArgs& args) {
  watched<RouteArgs>(bench(base), step, args, run_route);
}
void routed_experts(Context& base, const StepView& step, const RoutedExpertsArgs& args) {
  watched<RoutedExpertsArgs>(bench(base), step, args, run_routed);
}

}  // namespace

BenchContext::BenchContext(int device_index, int64_t workspace_bytes)
    : CudaContext(device_index, workspace_bytes), backend(&cuda_ops()), table_(cuda_ops()) {
  ops = &table_;
  on_part = [this](OpPart part) {
    if (clock != nullptr) clock->part(part);
  };
  table_.copy_in = copy_in;
  table_.embed = plain<&Ops::embed, EmbedArgs>;
  table_.engram_hash = plain<&Ops::engram_hash, EngramHashArgs>;
  table_.engram = plain<&Ops::engram, EngramArgs>;
  table_.hc_collapse = plain<&Ops::hc_collapse, HcCollapseArgs>;
  table_.hc_expand = plain<&Ops::hc_expand, HcExpandArgs>;
  table_.attention_input = plain<&Ops::attention_input, AttentionInputArgs>;
  table_.window_rows = plain<&Ops::window_rows, WindowRowsArgs>;
  table_.compress = plain<&Ops::compress, CompressArgs>;
  table_.index_select = plain<&Ops::index_select, IndexSelectArgs>;
  table_.sparse_attention = plain<&Ops::sparse_attention, SparseAttentionArgs>;
  table_.attention_output = plain<&Ops::attention_output, AttentionOutputArgs>;
  table_.route = route;
  table_.routed_experts = routed_experts;
  table_.shared_expert = plain<&Ops::shared_expert, SharedExpertArgs>;
  table_.keep_rows = keep_rows;
  table_.head = plain<&Ops::head, HeadArgs>;
  table_.commit_ring = plain<&Ops::commit_ring, CommitRingArgs>;
  table_.commit_pending = plain<&Ops::commit_pending, CommitPendingArgs>;
  table_.commit_history = plain<&Ops::commit_history, CommitHistoryArgs>;
}

void BenchContext::begin(Stage stage, int32_t rows) {
  if (clock != nullptr) clock->operation(stage, rows);
}

}  // namespace mdi::bench

#endif
