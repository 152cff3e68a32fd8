#include "engine/stage_ops.h"

#include "kernels/sample.h"

namespace mdi {

// An operation of a step's rows.
template <auto kOp, class Args>
void StageScope::mark_rows() {
  table_.*kOp = [](Context& context, const StepView& step, const Args& args) {
    const auto& table = static_cast<const Table&>(*context.ops);
    table.clock->operation(stage_of(args), step.rows);
    (table.plain->*kOp)(context, step, args);
  };
}

template <auto kOp, class Args>
void StageScope::mark() {
  table_.*kOp = [](Context& context, const Args& args) {
    const auto& table = static_cast<const Table&>(*context.ops);
    table.clock->begin(stage_of(args));
    (table.plain->*kOp)(context, args);
  };
}

StageScope::StageScope(Context& context, StageClock& clock)
    : context_(context), table_{*context.ops, context.ops, &clock} {
  mark_rows<&Ops::embed, EmbedArgs>();
  mark_rows<&Ops::engram_hash, EngramHashArgs>();
  mark_rows<&Ops::engram, EngramArgs>();
  mark_rows<&Ops::hc_collapse, HcCollapseArgs>();
  mark_rows<&Ops::hc_expand, HcExpandArgs>();
  mark_rows<&Ops::attention_input, AttentionInputArgs>();
  mark_rows<&Ops::window_rows, WindowRowsArgs>();
  mark_rows<&Ops::compress, CompressArgs>();
  mark_rows<&Ops::index_select, IndexSelectArgs>();
  mark_rows<&Ops::sparse_attention, SparseAttentionArgs>();
  mark_rows<&Ops::attention_output, AttentionOutputArgs>();
  mark_rows<&Ops::route, RouteArgs>();
  mark_rows<&Ops::routed_experts, RoutedExpertsArgs>();
  mark_rows<&Ops::shared_expert, SharedExpertArgs>();
  mark_rows<&Ops::mean_copies, MeanCopiesArgs>();
  mark_rows<&Ops::linear_norm, LinearNormArgs>();
  mark_rows<&Ops::head, HeadArgs>();
  mark_rows<&Ops::commit_ring, CommitRingArgs>();
  mark_rows<&Ops::commit_pending, CommitPendingArgs>();
  mark_rows<&Ops::commit_history, CommitHistoryArgs>();
  mark<&Ops::keep_rows, KeepRowsArgs>();
  mark<&Ops::sample, SampleArgs>();
  mark<&Ops::place_tokens, PlaceTokensArgs>();
  context.ops = &table_;
  context.on_part = [&clock](OpPart part) { clock.part(part); };
}

StageScope::~StageScope() {
  context_.ops = table_.plain;
  context_.on_part = {};
}

}  // namespace mdi
