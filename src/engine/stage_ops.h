// The context's operations with a clock that is told where stages begin, while a step is measured in service. What runs
// is what runs without it.
#pragma once

#include "engine/stage_clock.h"

namespace mdi {

// In force for a context while it lives.
class StageScope {
 public:
  StageScope(Context& context, StageClock& clock);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  struct Table : Ops {
    const Ops* plain;
    StageClock* clock;
  };
  template <auto kOp, class Args>
  void mark_rows();
  template <auto kOp, class Args>
  void mark();

  Context& context_;
  Table table_;
};

}  // namespace mdi
