// How far computed values lie from stored ones, measured in the ways that the golden data's tolerances speak of.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "engine/golden/report.h"

namespace mdi::golden {

// What is measured. A row is `row` consecutive elements; rel of a set of elements is |found - expected| / |expected| in
// the Euclidean norm. Equal infinities differ by 0; a NaN or an infinity on one side only differs by infinity.
enum class Rule : uint8_t {
  kExact,       // elements that differ (0 and -0 do not)
  kUlp,         // largest distance in bf16 steps; what is below 1e-6 of the row's largest value is no distance
  kAbsolute,    // largest difference
  kRowLargest,  // largest difference, relative to the largest expected value of its row
  kRelative,    // rel over all elements
  kMedianRow,   // the median of the rows' rel
  kOutlier,     // largest difference, relative to the root mean square of all expected values
  kSameArgmax,  // share of rows whose largest element is at the same place; at least the limit
};

struct Tolerance {
  Rule rule = Rule::kExact;
  double limit = 0;
};

// Every tolerance must hold.
using Tolerances = std::vector<Tolerance>;

// Values of one dtype and shape against stored values; dtypes may differ (an fp32 against a stored bf16), numbers of
// elements may not: that throws mdi::Error(name, ...). row 0: the last axis of `expected`.
Quantity compare(std::string name, const TensorView& found, const TensorView& expected, const Tolerances& tolerances,
                 int64_t row = 0);

// One number of the kind that kMedianRow, kRelative, ... measure.
double measure(Rule rule, const TensorView& found, const TensorView& expected, int64_t row = 0);

// Element i as a number. Bytes of e4m3 and e8m0 are read as their values, of i8 and u8 as integers.
double element(const TensorView& t, int64_t i);

// A view of a vector, in the shape that is given (or flat).
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<e4m3> {
  static constexpr DType value = DType::kE4M3;
};
template <>
struct DTypeOf<e8m0> {
  static constexpr DType value = DType::kE8M0;
};

template <class T>
TensorView view(const std::vector<T>& values, std::initializer_list<int64_t> shape = {}) {
  TensorView t;
  t.data = values.data();
  t.dtype = DTypeOf<T>::value;
  if (shape.size() == 0) {
    t.rank = 1;
    t.shape[0] = static_cast<int64_t>(values.size());
  } else {
    for (int64_t n : shape) t.shape[static_cast<size_t>(t.rank++)] = n;
  }
  return t;
}

}  // namespace mdi::golden
