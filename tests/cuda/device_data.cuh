// Random data made on the device, for timings at released shapes: host generators would take longer than the kernels.
#pragma once

#include "harness.h"

namespace mdi::check {

__device__ inline uint32_t hash(uint64_t i, uint32_t seed) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u + (uint64_t{seed} << 32);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(z ^ (z >> 31));
}
// About gaussian: the sum of four uniforms, unit variance.
__device__ inline float bell(uint32_t h) {
  const int sum = static_cast<int>((h & 255u) + (h >> 8 & 255u) + (h >> 16 & 255u) + (h >> 24)) - 510;
  return static_cast<float>(sum) * (1.0f / 147.8f);
}

enum class Fill { kBF16, kE4M3, kBytes, kScales, kFloats };

static __global__ void fill_kernel(Fill what, void* out, int64_t count, float scale, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t h = hash(static_cast<uint64_t>(i), seed);
    if (what == Fill::kBF16) static_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16(bell(h) * scale);
    if (what == Fill::kE4M3) static_cast<__nv_fp8_e4m3*>(out)[i] = __nv_fp8_e4m3(bell(h) * 64.0f);
    if (what == Fill::kBytes) static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(h);
    if (what == Fill::kScales) static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(114u + h % 3u);
    if (what == Fill::kFloats) static_cast<float*>(out)[i] = bell(h) * scale;
  }
}
inline void fill(Fill what, void* out, int64_t count, float scale = 1.0f, uint32_t seed = 1) {
  fill_kernel<<<1024, 256>>>(what, out, count, scale, seed);
  MDI_CUDA(cudaDeviceSynchronize());
}

// A weight of released size, or a pool of them: `copies` weights one after the other.
struct DeviceWeight {
  DeviceArray<uint8_t> data, scale;
  LinearWeight weight;
  int64_t data_bytes = 0, scale_bytes = 0;

  DeviceWeight(WeightKind kind, int64_t n, int64_t k, int64_t copies, uint32_t seed = 1) {
    data_bytes = kind == WeightKind::kE2M1 ? n * k / 2 : kind == WeightKind::kE4M3 ? n * k : n * k * 2;
    scale_bytes = kind == WeightKind::kE2M1 ? n * k / 32 : kind == WeightKind::kE4M3 ? n / 32 * k / 32 : 0;
    data = DeviceArray<uint8_t>(static_cast<size_t>(data_bytes * copies));
    if (kind == WeightKind::kBF16) fill(Fill::kBF16, data.data(), n * k * copies, 0.02f, seed);
    if (kind == WeightKind::kE4M3) fill(Fill::kE4M3, data.data(), n * k * copies, 1, seed);
    if (kind == WeightKind::kE2M1) fill(Fill::kBytes, data.data(), data_bytes * copies, 1, seed);
    if (scale_bytes > 0) {
      scale = DeviceArray<uint8_t>(static_cast<size_t>(scale_bytes * copies));
      fill(Fill::kScales, scale.data(), scale_bytes * copies, 1, seed);
    }
    weight = {.kind = kind, .data = data.data(), .scale = reinterpret_cast<const e8m0*>(scale.data()), .n = n, .k = k};
  }
  LinearWeight at(int64_t i) const {
    LinearWeight w = weight;
    w.data = data.data() + i * data_bytes;
    w.scale = reinterpret_cast<const e8m0*>(scale.data() + i * scale_bytes);
    return w;
  }
};

}  // namespace mdi::check
