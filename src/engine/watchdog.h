// Whether a request still gets on. Progress is a token further than it ever was: a sequence that is preempted and
// recomputed again and again makes none.
#pragma once

#include <cstdint>

namespace mdi {

struct Progress {
  int64_t furthest = -1;  // tokens
  double since = 0;       // when it got there
};

// Notes where a running request is; true when it has stood still for longer than `limit` seconds (0: never).
inline bool stands_still(Progress& progress, int64_t tokens, double now, double limit) {
  if (tokens > progress.furthest) {
    progress = {.furthest = tokens, .since = now};
    return false;
  }
  return limit > 0 && now - progress.since > limit;
}

}  // namespace mdi
