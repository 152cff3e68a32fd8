#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/round_lanes.h"

namespace mdi::cpu {

namespace {

void dequantise_row(const LinearWeight& w, int64_t row, float* out) {
  switch (w.kind) {
    case WeightKind::kE4M3: {
      const e4m3* q = static_cast<const e4m3*>(w.data) + row * w.k;
      const e8m0* scale = w.scale + (row / 32) * ((w.k + 31) / 32);
      for (int64_t b = 0; b * 32 < w.k; ++b) {
        const float s = to_float(scale[b]);
        for (int64_t i = b * 32; i < std::min(w.k, b * 32 + 32); ++i) out[i] = e4m3_value(q[i].bits) * s;
      }
      return;
    }
    case WeightKind::kE2M1: {
      const uint8_t* q = static_cast<const uint8_t*>(w.data) + row * (w.k / 2);
      const e8m0* scale = w.scale + row * ((w.k + 31) / 32);
      for (int64_t i = 0; i < w.k; ++i) {
        out[i] = (i % 2 == 0 ? e2m1_low(q[i / 2]) : e2m1_high(q[i / 2])) * to_float(scale[i / 32]);
      }
      return;
    }
    case WeightKind::kBF16: {
      const bf16* q = static_cast<const bf16*>(w.data) + row * w.k;
      for (int64_t i = 0; i < w.k; ++i) out[i] = to_float(q[i]);
      return;
    }
    case WeightKind::kF32: {
      const float* q = static_cast<const float*>(w.data) + row * w.k;
      std::copy(q, q + w.k, out);
      return;
    }
  }
}

float dot(const bf16* x, const float* w, int64_t k) {
  constexpr int64_t kLanes = 16;
  float lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] += to_float(x[i + j]) * w[i + j];
  }
  for (int64_t j = 0; i + j < k; ++j) lane[j] += to_float(x[i + j]) * w[i + j];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  return lane[0];
}

}  // namespace

LinearWeight rows_of(const LinearWeight& w, int64_t first, int64_t n) {
  LinearWeight part = w;
  part.n = n;
  const int64_t blocks = (w.k + 31) / 32;
  switch (w.kind) {
    case WeightKind::kE4M3:
      part.data = static_cast<const e4m3*>(w.data) + first * w.k;
      part.scale = w.scale + first / 32 * blocks;
      break;
    case WeightKind::kE2M1:
      part.data = static_cast<const uint8_t*>(w.data) + first * (w.k / 2);
      part.scale = w.scale + first * blocks;
      break;
    case WeightKind::kBF16:
      part.data = static_cast<const bf16*>(w.data) + first * w.k;
      break;
    case WeightKind::kF32:
      part.data = static_cast<const float*>(w.data) + first * w.k;
      break;
  }
  return part;
}

void gemm(ThreadPool& pool, const GemmArgs& args) {
  constexpr int64_t kPanel = 16;
  const int64_t panels = (args.w.n + kPanel - 1) / kPanel;
  const auto panel = [&](int64_t p) {
    thread_local std::vector<float> row;
    row.resize(static_cast<size_t>(args.w.k));
    for (int64_t n = p * kPanel; n < std::min(args.w.n, (p + 1) * kPanel); ++n) {
      dequantise_row(args.w, n, row.data());
      for (int64_t i = 0; i < args.m; ++i) {
        const float y = dot(args.x + i * args.ldx, row.data(), args.w.k);
        if (args.y_f32 != nullptr) args.y_f32[i * args.ldy + n] = y;
        if (args.y_bf16 != nullptr) args.y_bf16[i * args.ldy + n] = to_bf16(y);
      }
    }
  };
  if (args.m * args.w.n * args.w.k < 200000) {
    for (int64_t p = 0; p < panels; ++p) panel(p);
  } else {
    pool.for_each(panels, panel);
  }
}

const char* gemm_description() { return "own kernel, f32"; }

}  // namespace mdi::cpu
