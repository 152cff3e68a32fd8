// The CUDA context of a benchmark: the backend's operations with something around each. What runs between is the code
// of model/forward.cpp and the backend, as in `generate`.
//
//  - A clock is told where a stage begins, as in service (engine/stage_clock.h).
//  - The experts get the rows of all ranks: this rank's rows and stand-ins for the others', with choices made
//    beforehand (routing.h), and the ranks' partial sums are added up. Only the wire is missing.
//  - An observer may see each operation before it runs, to check it or to run it again.
#pragma once

#ifdef MDI_WITH_CUDA

#include <functional>

#include "engine/stage_clock.h"
#include "kernels/cuda/context.h"

namespace mdi::bench {

class Oracle;

// What the experts of this rank get in place of the step's own choices, in device memory.
struct ExchangeLoad {
  int32_t ranks = 1, first = 0, count = 0;  // local experts
  int64_t rows = 0;                         // of all ranks, at most
  const int32_t* index = nullptr;           // [layers, rows, topk]
  const float* weight = nullptr;            // [rows, topk]
  bf16* gathered = nullptr;                 // [rows, dim]
  float* partial = nullptr;                 // [rows, dim]
};

struct BenchContext : CudaContext {
  BenchContext(int device, int64_t workspace_bytes);

  const Ops* backend;
  ExchangeLoad load;
  StageClock* clock = nullptr;  // null: no marks
  Oracle* oracle = nullptr;     // null: nothing is checked
  // Called with the stage and a function that runs the operation again; empty: nothing.
  std::function<void(Stage, int layer, const char* name, std::function<void()> again)> recorder;
  bool copies = true;  // false: copies to the device are skipped (while a graph is captured: they have been made)

  void begin(Stage stage, int32_t rows);

 private:
  Ops table_;
};

}  // namespace mdi::bench

#endif
