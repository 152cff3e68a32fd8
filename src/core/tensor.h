// Views of dense row-major data. A view owns nothing; the mapped file, buffer or pool that it points into outlives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace mdi {

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// "[512, 5120]"
std::string shape_text(const TensorView& t);

}  // namespace mdi
