#include "kernels/cpu/fma_kernel.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/weight_panel.h"

namespace mdi::cpu {

namespace {

// Outputs that stay in registers: kRows x kVectors accumulators, and b is read once for all rows. Of AVX-512's 32
// registers 24 accumulate; a Lanes is two registers in AVX2, where one vector a row leaves room.
constexpr int kRows = 6;
#ifdef __AVX512F__
constexpr int kVectors = 4;
#else
constexpr int kVectors = 1;
#endif

// Not splat(): x - 0 is x, so that this is a plain broadcast from memory.
inline Lanes broadcast(float x) { return x - Lanes{}; }

template <int R>
void fma_block(const float* x, int64_t ldx, const float* b, int64_t k, float* chain) {
  for (int n = 0; n < kPanel; n += kVectors * kLanes) {
    Lanes acc[R][kVectors];
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kVectors; ++v) acc[i][v] = load(chain + i * kPanel + n + v * kLanes);
    }
    for (int64_t j = 0; j < k; ++j) {
      Lanes w[kVectors];
      for (int v = 0; v < kVectors; ++v) w[v] = load(b + j * kPanel + n + v * kLanes);
      for (int i = 0; i < R; ++i) {
        const Lanes xi = broadcast(x[i * ldx + j]);
        for (int v = 0; v < kVectors; ++v) acc[i][v] = fma(xi, w[v], acc[i][v]);
      }
    }
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kVectors; ++v) store(chain + i * kPanel + n + v * kLanes, acc[i][v]);
    }
  }
}

}  // namespace

void fma_rows(const float* x, int64_t ldx, int64_t rows, const float* b, int64_t k, float* chain) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) fma_block<kRows>(x + i * ldx, ldx, b, k, chain + i * kPanel);
  x += i * ldx;
  chain += i * kPanel;
  switch (rows - i) {
    case 1:
      return fma_block<1>(x, ldx, b, k, chain);
    case 2:
      return fma_block<2>(x, ldx, b, k, chain);
    case 3:
      return fma_block<3>(x, ldx, b, k, chain);
    case 4:
      return fma_block<4>(x, ldx, b, k, chain);
    case 5:
      return fma_block<5>(x, ldx, b, k, chain);
    default:
      return;
  }
}

void add_chain(const float* chain, int64_t rows, float* sum) {
  for (int64_t i = 0; i < rows * kPanel; i += kLanes) store(sum + i, load(sum + i) + load(chain + i));
}

}  // namespace mdi::cpu
