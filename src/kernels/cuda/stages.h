// The CUDA implementations of the operations of kernels/ops.h, listed once.
#pragma once

#include "kernels/ops.h"

namespace mdi::cuda {

void embed(Context&, const StepView&, const EmbedArgs&);
void engram_hash(Context&, const StepView&, const EngramHashArgs&);
void engram(Context&, const StepView&, const EngramArgs&);
void hc_collapse(Context&, const StepView&, const HcCollapseArgs&);
void hc_expand(Context&, const StepView&, const HcExpandArgs&);
void attention_input(Context&, const StepView&, const AttentionInputArgs&);
void compress(Context&, const StepView&, const CompressArgs&);
void index_select(Context&, const StepView&, const IndexSelectArgs&);
void sparse_attention(Context&, const StepView&, const SparseAttentionArgs&);
void attention_output(Context&, const StepView&, const AttentionOutputArgs&);
void route(Context&, const StepView&, const RouteArgs&);
void routed_experts(Context&, const StepView&, const RoutedExpertsArgs&);
void shared_expert(Context&, const StepView&, const SharedExpertArgs&);
void begin_shared_expert(Context&, const StepView&, const SharedExpertArgs&);
void mean_copies(Context&, const StepView&, const MeanCopiesArgs&);
void head(Context&, const StepView&, const HeadArgs&);
void linear_norm(Context&, const StepView&, const LinearNormArgs&);
void window_rows(Context&, const StepView&, const WindowRowsArgs&);
void markov(Context&, const MarkovArgs&);
void keep_rows(Context&, const KeepRowsArgs&);
void commit_ring(Context&, const StepView&, const CommitRingArgs&);
void commit_pending(Context&, const StepView&, const CommitPendingArgs&);
void commit_history(Context&, const StepView&, const CommitHistoryArgs&);
void sample(Context&, const SampleArgs&);
void place_tokens(Context&, const PlaceTokensArgs&);

void vision_linear(Context&, const VisionLinearArgs&);
void vision_norm(Context&, const VisionNormArgs&);
void vision_attention(Context&, const VisionAttentionArgs&);
void vision_gate(Context&, const VisionGateArgs&);
void vision_windows(Context&, const VisionWindowsArgs&);

}  // namespace mdi::cuda
