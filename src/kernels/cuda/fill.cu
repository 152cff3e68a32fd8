// Random values (fill.h): bound by arithmetic, about 20 instructions a value; a thread makes eight bytes.
#include <bit>
#include <cmath>

#include "kernels/cuda/fill.h"
#include "kernels/cuda/formats.cuh"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 256;
constexpr float kE4M3Spread = 92.0f;  // of the codes, as in checkpoint/synth_values.cpp

enum class Kind : uint8_t { kBF16, kF32, kE4M3, kE2M1, kScales, kBytes };

struct Fill {
  FillRegion region;
  uint64_t key;
  float mean, spread;
  int low;             // kScales: the least common byte; kBytes: the least byte
  uint32_t count;      // kBytes
  uint32_t next_of_8;  // kScales: how many of 256 get one more
};

// The finaliser of splitmix64 over a counter.
__device__ uint64_t random_at(uint64_t key, uint64_t index) {
  uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Two normal values (Box and Muller) of 32 random bits.
__device__ float2 normal_pair(uint32_t bits) {
  const float u = (static_cast<float>(bits & 0xFFFFu) + 0.5f) * 0x1p-16f;
  const float angle = static_cast<float>(bits >> 16) * (0x1p-16f * 6.2831853f);
  const float radius = sqrtf(-2.0f * __logf(u));
  float sine, cosine;
  __sincosf(angle, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

// The code of a normal value of deviation 2.2: its sign, and how many ties between codes lie below it.
__device__ uint32_t e2m1_normal(uint32_t byte) {
  const uint32_t m = byte & 127u;
  const uint32_t index = uint32_t{m >= 12} + uint32_t{m >= 34} + uint32_t{m >= 55} + uint32_t{m >= 73} +
                         uint32_t{m >= 95} + uint32_t{m >= 114} + uint32_t{m >= 125};
  return index | ((byte >> 4) & 8u);
}

template <Kind kKind>
__device__ uint64_t eight_bytes(const Fill& f, uint64_t at) {
  const uint64_t bits = random_at(f.key, at);
  const auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
  if constexpr (kKind == Kind::kBF16 || kKind == Kind::kF32) {
    const float2 a = normal_pair(low);
    const float a0 = f.mean + f.spread * a.x, a1 = f.mean + f.spread * a.y;
    if constexpr (kKind == Kind::kF32) return uint64_t{__float_as_uint(a1)} << 32 | __float_as_uint(a0);
    const float2 b = normal_pair(high);
    return uint64_t{pack_bf16(f.mean + f.spread * b.x, f.mean + f.spread * b.y)} << 32 | pack_bf16(a0, a1);
  } else if constexpr (kKind == Kind::kE4M3) {
    const uint64_t more = random_at(~f.key, at);
    uint64_t out = 0;
    const uint32_t words[4] = {low, high, static_cast<uint32_t>(more), static_cast<uint32_t>(more >> 32)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = normal_pair(words[i]);
      out |= uint64_t{e4m3_codes(v.x * kE4M3Spread, v.y * kE4M3Spread)} << (16 * i);
    }
    return out;
  } else if constexpr (kKind == Kind::kE2M1) {
    const uint64_t more = random_at(~f.key, at);
    uint64_t out = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out |= uint64_t{e2m1_normal(static_cast<uint32_t>(bits >> (8 * i)) & 255u)} << (8 * i);
      out |= uint64_t{e2m1_normal(static_cast<uint32_t>(more >> (8 * i)) & 255u)} << (8 * i + 4);
    }
    return out;
  } else if constexpr (kKind == Kind::kScales) {
    const uint64_t more = random_at(~f.key, at);
    uint64_t out = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto step = static_cast<uint32_t>(bits >> (8 * i)) & 3u;
      const uint32_t next = (static_cast<uint32_t>(more >> (8 * i)) & 255u) < f.next_of_8 ? 1 : 0;
      const int byte = f.low + (step == 0 ? -1 : step == 3 ? 1 : 0) + static_cast<int>(next);
      out |= uint64_t{static_cast<uint32_t>(min(max(byte, 1), 254))} << (8 * i);
    }
    return out;
  } else {
    uint64_t out = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = static_cast<uint32_t>(bits >> (8 * i)) & 255u;
      out |= uint64_t{static_cast<uint32_t>(f.low) + byte * f.count / 256} << (8 * i);
    }
    return out;
  }
}

template <Kind kKind>
__global__ void __launch_bounds__(kThreads) fill_kernel(Fill f) {
  const int64_t chunks = (f.region.row_bytes + 7) / 8;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < chunks * f.region.rows; at += stride) {
    const int64_t row = at / chunks, byte = at % chunks * 8;
    const uint64_t value = eight_bytes<kKind>(f, static_cast<uint64_t>(at));
    auto* to = static_cast<uint8_t*>(f.region.base) + row * f.region.stride + byte;
    if (byte + 8 <= f.region.row_bytes && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint64_t*>(to) = value;
      continue;
    }
    for (int64_t i = 0; i < 8 && byte + i < f.region.row_bytes; ++i) to[i] = static_cast<uint8_t>(value >> (8 * i));
  }
}

template <Kind kKind>
void launch(CudaContext& context, const Fill& f) {
  const int64_t items = (f.region.row_bytes + 7) / 8 * f.region.rows;
  if (items <= 0) return;
  // Enough blocks for every multiprocessor, few enough that a large tensor's threads loop.
  const int64_t most = int64_t{context.multiprocessors} * 64;
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  fill_kernel<kKind><<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, context.stream>>>(f);
  MDI_CUDA_LAUNCHED(context, "fill of " + std::to_string(f.region.row_bytes) + " bytes");
}

}  // namespace

void fill_bf16(CudaContext& context, const FillRegion& region, float mean, float spread, uint64_t key) {
  launch<Kind::kBF16>(context, {region, key, mean, spread, 0, 0, 0});
}
void fill_f32(CudaContext& context, const FillRegion& region, float mean, float spread, uint64_t key) {
  launch<Kind::kF32>(context, {region, key, mean, spread, 0, 0, 0});
}
void fill_e4m3(CudaContext& context, const FillRegion& region, uint64_t key) {
  launch<Kind::kE4M3>(context, {region, key, 0, 0, 0, 0, 0});
}
void fill_e2m1(CudaContext& context, const FillRegion& region, uint64_t key) {
  launch<Kind::kE2M1>(context, {region, key, 0, 0, 0, 0, 0});
}
void fill_scales(CudaContext& context, const FillRegion& region, int exponent, double next, uint64_t key) {
  launch<Kind::kScales>(context,
                        {region, key, 0, 0, exponent + 127, 0, static_cast<uint32_t>(std::lround(next * 256))});
}
void fill_bytes(CudaContext& context, const FillRegion& region, int low, int count, uint64_t key) {
  launch<Kind::kBytes>(context, {region, key, 0, 0, low, static_cast<uint32_t>(count), 0});
}

}  // namespace mdi::cuda
