// GPU time by stage: an event where each stage begins. The stages of a step fill it without gaps, so they add up to it.
#pragma once

#ifdef MDI_WITH_CUDA

#include <cuda_runtime.h>

#include <vector>

#include "engine/bench/stages.h"

namespace mdi::bench {

class Timeline {
 public:
  explicit Timeline(cudaStream_t stream) : stream_(stream) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void start(Stage stage);  // forgets what came before
  void begin(Stage stage);  // nothing where that stage is running already
  void finish();
  // Milliseconds a stage, once the stream has passed finish().
  PerStage<double> read() const;
  // Records into a graph that is being captured: its events are recorded anew at every launch.
  bool captured = false;

 private:
  struct Mark {
    Stage stage;
    cudaEvent_t event;
  };
  void mark(Stage stage);

  cudaStream_t stream_;
  std::vector<Mark> marks_;         // of this step, its end last
  std::vector<cudaEvent_t> spare_;  // made once
};

}  // namespace mdi::bench

#endif
