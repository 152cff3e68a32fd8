#include "engine/cost_model.h"

#include <cmath>
#include <utility>

namespace mdi {

namespace {

using Vector = std::array<double, 4>;
using Matrix = std::array<Vector, 4>;

constexpr double kDecay = 0.99;
constexpr double kPriorWeight = 0.01;  // in observed steps

Vector features(const StepLoad& load) { return {1, load.rows, load.context, load.samples}; }

// Solves m x = r over the unknowns that `used` names; the others are 0. The matrix is positive definite (the prior).
Vector solve(Matrix m, Vector r, const std::array<bool, 4>& used) {
  for (size_t i = 0; i < 4; ++i) {
    if (used[i]) continue;
    for (size_t j = 0; j < 4; ++j) m[i][j] = m[j][i] = 0;
    m[i][i] = 1;
    r[i] = 0;
  }
  for (size_t i = 0; i < 4; ++i) {
    size_t pivot = i;
    for (size_t k = i + 1; k < 4; ++k) {
      if (std::abs(m[k][i]) > std::abs(m[pivot][i])) pivot = k;
    }
    std::swap(m[i], m[pivot]);
    std::swap(r[i], r[pivot]);
    for (size_t k = i + 1; k < 4; ++k) {
      const double factor = m[k][i] / m[i][i];
      for (size_t j = i; j < 4; ++j) m[k][j] -= factor * m[i][j];
      r[k] -= factor * r[i];
    }
  }
  Vector x = {};
  for (size_t i = 4; i-- > 0;) {
    double sum = r[i];
    for (size_t j = i + 1; j < 4; ++j) sum -= m[i][j] * x[j];
    x[i] = sum / m[i][i];
  }
  return x;
}

// In units of the prior, so that the four unknowns are of one size.
Vector fit(const CostModel& model) {
  const Vector& scale = model.prior;
  Matrix m = {};
  Vector r = {};
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) m[i][j] = model.normal[i][j] * scale[i] * scale[j];
    r[i] = model.right[i] * scale[i];
    m[i][i] += kPriorWeight;
    r[i] += kPriorWeight;
  }
  // A negative cost is noise: the most negative one is taken as 0 and the others are fitted again.
  std::array<bool, 4> used = {true, true, true, true};
  for (;;) {
    Vector x = solve(m, r, used);
    size_t least = 0;
    for (size_t i = 1; i < 4; ++i) {
      if (x[i] < x[least]) least = i;
    }
    if (x[least] >= 0) {
      for (size_t i = 0; i < 4; ++i) x[i] *= scale[i];
      return x;
    }
    used[least] = false;
  }
}

}  // namespace

StepLoad load_of(int64_t start, int64_t count, int64_t samples) {
  const auto n = static_cast<double>(count);
  return {
      .rows = n, .context = n * static_cast<double>(start) + n * (n + 1) / 2, .samples = static_cast<double>(samples)};
}

double predict(const CostModel& model, const StepLoad& load) {
  const Vector x = features(load);
  double seconds = 0;
  for (size_t i = 0; i < 4; ++i) seconds += model.c[i] * x[i];
  return seconds;
}

void observe(CostModel& model, const StepLoad& load, double seconds) {
  if (!(seconds > 0) || load.rows <= 0) return;
  Vector x = features(load);
  for (double& value : x) value /= seconds;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) model.normal[i][j] = kDecay * model.normal[i][j] + x[i] * x[j];
    model.right[i] = kDecay * model.right[i] + x[i];
  }
  ++model.observed;
  model.c = fit(model);
}

int32_t rows_within(const CostModel& model, const StepLoad& base, int64_t start, int32_t limit, double seconds) {
  int32_t low = 0;
  int32_t high = limit;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    StepLoad load = base;
    load += load_of(start, middle, 1);
    if (predict(model, load) <= seconds) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace mdi
