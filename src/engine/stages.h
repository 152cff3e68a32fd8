// The stages that a step's time is told apart by, in service and in the bench, and which operation is part of which.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace mdi {

enum class Stage : uint8_t {
  kProjections,  // wq_a, wq_b, wkv, wo_a, wo_b with their norms, rope and quantisation; the compressors
  kAttention,    // window and selected rows
  kIndexScores,  // index queries and the scores of all visible or candidate keys
  kSelection,    // top-k and candidate blocks
  kGate,         // scores of all experts and the choice
  kExchange,     // dispatch and combine without the wire: sort, gather, sums
  kRouted,       // the routed experts' products
  kShared,       // the shared expert; with CUDA what of it does not run beside the routed ones
  kStream,       // hyper-connections and the norms that run with them
  kEngram,       // hash, lookup, projection, gate
  kReplayTail,   // everything of the layers that compute the kept rows only, and keeping them
  kOther,        // embedding, head, choice of tokens, the draft layers' input, commit, copies of the step's arrays
  kCount
};

inline constexpr size_t kStages = static_cast<size_t>(Stage::kCount);

template <class T>
struct PerStage : std::array<T, kStages> {
  T& operator[](Stage s) { return std::array<T, kStages>::operator[](static_cast<size_t>(s)); }
  const T& operator[](Stage s) const { return std::array<T, kStages>::operator[](static_cast<size_t>(s)); }
};

const char* stage_name(Stage stage);  // "attention projections", ...

// The stage that an operation is part of, or begins with where its parts belong to several.
constexpr Stage stage_of(const EmbedArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const EngramHashArgs&) { return Stage::kEngram; }
constexpr Stage stage_of(const EngramArgs&) { return Stage::kEngram; }
constexpr Stage stage_of(const HcCollapseArgs&) { return Stage::kStream; }
constexpr Stage stage_of(const HcExpandArgs&) { return Stage::kStream; }
constexpr Stage stage_of(const AttentionInputArgs&) { return Stage::kProjections; }
constexpr Stage stage_of(const WindowRowsArgs&) { return Stage::kProjections; }
constexpr Stage stage_of(const CompressArgs&) { return Stage::kProjections; }
constexpr Stage stage_of(const IndexSelectArgs&) { return Stage::kIndexScores; }
constexpr Stage stage_of(const SparseAttentionArgs&) { return Stage::kAttention; }
constexpr Stage stage_of(const AttentionOutputArgs&) { return Stage::kProjections; }
constexpr Stage stage_of(const RouteArgs&) { return Stage::kGate; }
constexpr Stage stage_of(const RoutedExpertsArgs&) { return Stage::kExchange; }
constexpr Stage stage_of(const SharedExpertArgs&) { return Stage::kShared; }
constexpr Stage stage_of(const MeanCopiesArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const LinearNormArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const HeadArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const KeepRowsArgs&) { return Stage::kReplayTail; }
constexpr Stage stage_of(const CommitRingArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const CommitPendingArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const CommitHistoryArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const SampleArgs&) { return Stage::kOther; }
constexpr Stage stage_of(const PlaceTokensArgs&) { return Stage::kOther; }
Stage stage_of(OpPart part);

}  // namespace mdi
