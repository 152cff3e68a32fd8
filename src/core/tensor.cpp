#include "core/tensor.h"

namespace mdi {

std::string shape_text(const TensorView& t) {
  std::string text = "[";
  for (int i = 0; i < t.rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(t.shape[static_cast<size_t>(i)]);
  }
  return text + "]";
}

}  // namespace mdi
