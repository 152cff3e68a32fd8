#include "engine/bench/timeline.h"

#ifdef MDI_WITH_CUDA

#include "kernels/cuda/cuda_error.h"

namespace mdi::bench {

Timeline::~Timeline() {
  for (const Mark& m : marks_) cudaEventDestroy(m.event);
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
}

void Timeline::mark(Stage stage) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    MDI_CUDA(cudaEventCreate(&event));
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  marks_.push_back({stage, event});
  MDI_CUDA(cudaEventRecordWithFlags(event, stream_, captured ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void Timeline::start(Stage stage) {
  for (const Mark& m : marks_) spare_.push_back(m.event);
  marks_.clear();
  mark(stage);
}

void Timeline::begin(Stage stage) {
  if (!marks_.empty() && marks_.back().stage == stage) return;
  mark(stage);
}

void Timeline::finish() { mark(Stage::kCount); }

PerStage<double> Timeline::read() const {
  PerStage<double> ms{};
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    float elapsed = 0;
    MDI_CUDA(cudaEventElapsedTime(&elapsed, marks_[i].event, marks_[i + 1].event));
    ms[marks_[i].stage] += static_cast<double>(elapsed);
  }
  return ms;
}

}  // namespace mdi::bench

#endif
