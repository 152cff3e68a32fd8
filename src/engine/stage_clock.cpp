#include "engine/stage_clock.h"

namespace mdi {

StageClock::StageClock(Context& context, size_t marks)
    : context_(context), on_host_(context.ops->make_time_mark == nullptr) {
  if (on_host_) return;
  marks_.reserve(marks);
  while (marks_.size() < marks) marks_.emplace_back(context.ops->make_time_mark(context), Stage::kCount);
}

StageClock::~StageClock() {
  for (const auto& [mark, stage] : marks_) context_.ops->release_mark(context_, mark);
}

void StageClock::start(Stage stage, int32_t step_rows) {
  step_rows_ = step_rows;
  tail_ = too_few_ = false;
  running_ = Stage::kCount;
  seconds_ = {};
  set_ = 0;
  begin(stage);
}

void StageClock::begin(Stage stage) {
  if (stage == running_) return;
  if (on_host_) {
    const Clock::time_point now = Clock::now();
    if (running_ != Stage::kCount) seconds_[running_] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  } else if (set_ < marks_.size()) {
    context_.ops->set_mark(context_, marks_[set_].first);
    marks_[set_++].second = stage;
  } else {
    too_few_ = true;
  }
  running_ = stage;
}

void StageClock::operation(Stage stage, int32_t rows) {
  tail_ = context_.layer >= 0 && rows < step_rows_;
  begin(tail_ ? Stage::kReplayTail : stage);
}

void StageClock::part(OpPart part) {
  if (!tail_) begin(stage_of(part));
}

bool StageClock::passed() const {
  return on_host_ || set_ == 0 || context_.ops->passed_mark(context_, marks_[set_ - 1].first);
}

std::optional<PerStage<double>> StageClock::read() const {
  if (on_host_) return seconds_;
  if (too_few_) return std::nullopt;
  PerStage<double> seconds = {};
  for (size_t i = 0; i + 1 < set_; ++i) {
    const auto& [mark, stage] = marks_[i];
    if (stage != Stage::kCount) {
      seconds[stage] += context_.ops->seconds_between(context_, mark, marks_[i + 1].first);
    }
  }
  return seconds;
}

}  // namespace mdi
