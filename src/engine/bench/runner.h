// Runs a rank's step over and over and takes its time.
#pragma once

#ifdef MDI_WITH_CUDA

#include <set>
#include <vector>

#include "engine/bench/bench.h"
#include "engine/bench/oracle.h"

namespace mdi::bench {

// The times of `step`: forward and commit of all its tokens, launched one by one or as one captured graph.
RunResult run_steps(Rank& rank, const Step& step, const StepOptions& options, bool graph);

// One step under the oracle's eyes.
void check_step(Rank& rank, const Step& step, Oracle& oracle);

// Every operation of the chosen layers alone, with the inputs that it has inside the step.
std::vector<KernelTime> time_operations(Rank& rank, const Step& step, const std::set<int>& layers);

}  // namespace mdi::bench

#endif
