// The operations that a step is made of, for backends that wrap each of another one's.
#pragma once

#include "kernels/ops.h"

namespace mdi::testing {

// visit.operator()<&Ops::embed, EmbedArgs>() and so on.
template <class Visit>
void for_each_step_op(Visit visit) {
  visit.template operator()<&Ops::embed, EmbedArgs>();
  visit.template operator()<&Ops::engram_hash, EngramHashArgs>();
  visit.template operator()<&Ops::engram, EngramArgs>();
  visit.template operator()<&Ops::hc_collapse, HcCollapseArgs>();
  visit.template operator()<&Ops::hc_expand, HcExpandArgs>();
  visit.template operator()<&Ops::attention_input, AttentionInputArgs>();
  visit.template operator()<&Ops::compress, CompressArgs>();
  visit.template operator()<&Ops::index_select, IndexSelectArgs>();
  visit.template operator()<&Ops::sparse_attention, SparseAttentionArgs>();
  visit.template operator()<&Ops::attention_output, AttentionOutputArgs>();
  visit.template operator()<&Ops::route, RouteArgs>();
  visit.template operator()<&Ops::routed_experts, RoutedExpertsArgs>();
  visit.template operator()<&Ops::shared_expert, SharedExpertArgs>();
  visit.template operator()<&Ops::mean_copies, MeanCopiesArgs>();
  visit.template operator()<&Ops::head, HeadArgs>();
  visit.template operator()<&Ops::linear_norm, LinearNormArgs>();
  visit.template operator()<&Ops::window_rows, WindowRowsArgs>();
  visit.template operator()<&Ops::commit_ring, CommitRingArgs>();
  visit.template operator()<&Ops::commit_pending, CommitPendingArgs>();
  visit.template operator()<&Ops::commit_history, CommitHistoryArgs>();
}

}  // namespace mdi::testing
