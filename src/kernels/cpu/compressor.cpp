#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace mdi::cpu {

void compress_pair(const float* a0, const float* g0, const float* a1, const float* g1, int64_t n, bf16* l) {
  for (int64_t i = 0; i < n; ++i) {
    const float largest = std::max(g0[i], g1[i]);
    const float e0 = std::exp(g0[i] - largest);
    const float e1 = std::exp(g1[i] - largest);
    const float sum = e0 + e1;
    l[i] = to_bf16(e0 / sum * a0[i] + e1 / sum * a1[i]);
  }
}

}  // namespace mdi::cpu
