// The stages that a step's time is told apart by.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mdi::bench {

enum class Stage : uint8_t {
  kProjections,  // wq_a, wq_b, wkv, wo_a, wo_b with their norms, rope and quantisation; the compressors
  kAttention,    // window and selected rows
  kIndexScores,  // index queries and the scores of all visible or candidate keys
  kSelection,    // top-k and candidate blocks
  kGate,         // scores of all experts and the choice
  kExchange,     // dispatch and combine without the wire: sort, gather, sums
  kRouted,       // the routed experts' products
  kShared,       // the shared expert
  kStream,       // hyper-connections and the norms that run with them
  kEngram,       // hash, lookup, projection, gate
  kReplayTail,   // everything of the layers that compute the kept rows only
  kOther,        // embedding, head, commit, the copies of the step's arrays
  kCount
};

inline constexpr size_t kStages = static_cast<size_t>(Stage::kCount);

template <class T>
struct PerStage : std::array<T, kStages> {
  T& operator[](Stage s) { return std::array<T, kStages>::operator[](static_cast<size_t>(s)); }
  const T& operator[](Stage s) const { return std::array<T, kStages>::operator[](static_cast<size_t>(s)); }
};

const char* stage_name(Stage stage);  // "attention projections", ...

}  // namespace mdi::bench
