#include "engine/stages.h"

namespace mdi {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kProjections:
      return "attention projections";
    case Stage::kAttention:
      return "sparse attention";
    case Stage::kIndexScores:
      return "index scoring";
    case Stage::kSelection:
      return "top-k";
    case Stage::kGate:
      return "gate";
    case Stage::kExchange:
      return "dispatch and combine";
    case Stage::kRouted:
      return "routed experts";
    case Stage::kShared:
      return "shared expert";
    case Stage::kStream:
      return "hyper-connections, norms";
    case Stage::kEngram:
      return "engram";
    case Stage::kReplayTail:
      return "replay tail";
    case Stage::kOther:
      return "other";
    case Stage::kCount:
      break;
  }
  return "?";
}

Stage stage_of(OpPart part) {
  switch (part) {
    case OpPart::kIndexQueries:
    case OpPart::kIndexScores:
      return Stage::kIndexScores;
    case OpPart::kIndexSelection:
      return Stage::kSelection;
    case OpPart::kDispatch:
    case OpPart::kCombine:
      return Stage::kExchange;
    case OpPart::kExpertProducts:
      return Stage::kRouted;
  }
  return Stage::kOther;
}

}  // namespace mdi
