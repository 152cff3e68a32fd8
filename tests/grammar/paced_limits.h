// The limits of grammars at the pace of this build (tests/pace.h).
#pragma once

#include "../pace.h"
#include "grammar/grammar.h"

namespace mdi {

inline GrammarLimits paced_limits() {
  GrammarLimits limits;
  limits.max_compile_seconds *= kPace;
  limits.max_mask_seconds *= kPace;
  return limits;
}

}  // namespace mdi
