// What a step costs in seconds, fitted to the steps that were measured: it chooses how much prefill joins a decode
// step.
#pragma once

#include <array>
#include <cstdint>

namespace mdi {

// What a step's time depends on.
struct StepLoad {
  double rows = 0;     // new tokens
  double context = 0;  // sum over the rows of their positions: what index scoring reads
  double samples = 0;  // rows that go through the head

  StepLoad& operator+=(const StepLoad& other) {
    rows += other.rows;
    context += other.context;
    samples += other.samples;
    return *this;
  }
};

// `count` consecutive tokens from position `start`.
StepLoad load_of(int64_t start, int64_t count, int64_t samples);

// seconds = c[0] + c[1] rows + c[2] context + c[3] samples, with c >= 0. Least squares of the relative error over the
// observed steps, older ones weighing less (half after 70 steps), and weakly tied to `prior`, which alone counts at
// first and keeps apart what the observed steps do not tell apart.
struct CostModel {
  std::array<double, 4> prior = {2e-3, 1e-4, 1e-9, 1e-5};
  std::array<double, 4> c = prior;
  std::array<std::array<double, 4>, 4> normal = {};  // decayed sums of x x^T and x, x = features / seconds
  std::array<double, 4> right = {};
  int64_t observed = 0;
};

double predict(const CostModel& model, const StepLoad& load);

// A measured step. Times of 0 or less, and loads without rows, are left out.
void observe(CostModel& model, const StepLoad& load, double seconds);

// The most tokens, 0..limit, of one sequence at position `start` that can join `base` so that the step is predicted to
// take at most `seconds`.
int32_t rows_within(const CostModel& model, const StepLoad& base, int64_t start, int32_t limit, double seconds);

}  // namespace mdi
