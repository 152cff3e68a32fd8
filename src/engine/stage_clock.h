// A step's time by stage: the time is taken where a stage begins, so the stages add up to the step by construction.
//
// Where the backend's operations are done when they return, the host's clock is read. Where they run later, time marks
// (kernels/ops.h) are set among them and read when the work has passed them: nothing waits.
#pragma once

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "engine/stages.h"

namespace mdi {

class StageClock {
 public:
  // marks: as many as a step may take where the backend has marks; all made here. `context` outlives it.
  StageClock(Context& context, size_t marks);
  ~StageClock();
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // Forgets what came before. step_rows: of the whole step.
  void start(Stage stage, int32_t step_rows);
  // Nothing where that stage runs already.
  void begin(Stage stage);
  // An operation, at context.layer. One inside a layer with fewer rows than the step is part of the replay tail, and so
  // are its parts.
  void operation(Stage stage, int32_t rows);
  void part(OpPart part);
  // Until the next stage begins, the time is nobody's.
  void pause() { begin(Stage::kCount); }

  // After pause(): whether the context's work got there.
  bool passed() const;
  // Seconds a stage, once passed() holds. None where the step had more stages than there are marks.
  std::optional<PerStage<double>> read() const;

 private:
  using Clock = std::chrono::steady_clock;

  Context& context_;
  bool on_host_;
  int32_t step_rows_ = 0;
  bool tail_ = false;
  Stage running_ = Stage::kCount;
  // With the host's clock
  Clock::time_point since_;
  PerStage<double> seconds_ = {};
  // With marks: where which stage begins
  std::vector<std::pair<void*, Stage>> marks_;
  size_t set_ = 0;
  bool too_few_ = false;
};

}  // namespace mdi
