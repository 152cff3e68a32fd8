// The steps that the checks of stages go through: none, one row, several sequences, one of them without rows.
#pragma once

#include "random_data.h"

namespace mdi::check {

inline std::string text(const TestStep& step, const std::string& rest) { return step.shape + " " + rest; }

inline std::vector<std::vector<TestSequence>> step_shapes(bool small) {
  std::vector<std::vector<TestSequence>> shapes = {
      {}, {{0, 0, 1}}, {{2, 5, 3}, {0, 0, 0}, {1, 126, 4}}, {{0, 3, 37}, {1, 0, 1}, {3, 1000, 93}}};
  if (small) shapes.pop_back();
  return shapes;
}

// Of every shape, a fifth of the tokens inside images.
inline std::vector<TestStep> test_steps(bool small) {
  std::vector<TestStep> steps;
  Random random(1);
  for (const auto& shape : step_shapes(small)) steps.push_back(make_step(random, shape, 100, 0.2));
  return steps;
}

}  // namespace mdi::check
