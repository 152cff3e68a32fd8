// The last step of the compressor (spec 6.5): index key and compressed row of every latent that the step completes,
// into the planes of its sequence's block.
//
// A warp a row; rows that complete nothing leave at once. 4,096 rows at ratio 1: 5 MB read, 1.5 MB written, a few
// microseconds, launch included.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/rows.h"

namespace mdi::cuda {

namespace {

constexpr int kWarps = 4;

struct CacheRows {
  StepView step;
  RopeTable rope;
  const bf16* latent;
  const bf16* key;
  const bf16* k_norm;
  float eps;
  SourceCache cache;
};

__device__ uint8_t* bytes_at(std::byte* block, int64_t offset) { return reinterpret_cast<uint8_t*>(block + offset); }

__global__ void __launch_bounds__(kWarps * 32) write_cache_rows_kernel(CacheRows a) {
  const int lane = threadIdx.x % 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t >= a.step.rows) return;
  const SourceLayout layout = a.cache.layout;
  if ((a.step.position[t] + 1) % layout.ratio != 0) return;
  const int32_t j = a.step.position[t] / layout.ratio;
  const int32_t rotated_at = j * layout.ratio;
  const int32_t row = j % layout.rows;
  const int32_t id = a.step.block_table[int64_t{a.step.seq_of_row[t]} * a.step.max_blocks + j / layout.rows];
  std::byte* block = a.cache.blocks + id * a.cache.block_bytes;

  const bf16* key = a.key + t * layout.key_dim;
  float sum_a = 0, sum_b = 0;
  for (int e = 2 * lane; e < layout.key_dim; e += 64) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(key + e);
    sum_a = __fadd_rn(sum_a, __fmul_rn(low_half(pair), low_half(pair)));
    sum_b = __fadd_rn(sum_b, __fmul_rn(high_half(pair), high_half(pair)));
  }
  const float r = inverse_rms(tree_of_64(sum_a, sum_b), layout.key_dim, a.eps);
  uint8_t* key_codes = bytes_at(block, layout.key_codes + int64_t{row} * (layout.key_dim / 2));
  uint8_t* key_scales = bytes_at(block, layout.key_scales + int64_t{row} * (layout.key_dim / 32));
  for (int e = 2 * lane; e < layout.key_dim; e += 64) {  // key_dim % 64 == 0: all lanes take part
    const uint32_t x = *reinterpret_cast<const uint32_t*>(key + e);
    const uint32_t w = *reinterpret_cast<const uint32_t*>(a.k_norm + e);
    uint32_t y = pack_bf16(low_half(w) * (low_half(x) * r), high_half(w) * (high_half(x) * r));
    const int rotated = e - (layout.key_dim - a.rope.rope_dim);
    if (rotated >= 0) y = rope_pair(y, rope_angle(rotated_at, a.rope.inv_freq[rotated / 2]));
    const uint32_t byte = scale_byte(group_max(magnitude_max(y), 16), kFp4FloorE8M0, kInverse6);
    const float inverse = byte == 255 ? __uint_as_float(0x7FC00000u) : e8m0_inverse(byte);
    key_codes[e / 2] = static_cast<uint8_t>(e2m1_code(low_half(y) * inverse) | e2m1_code(high_half(y) * inverse) << 4);
    if (lane % 16 == 0) key_scales[e / 32] = static_cast<uint8_t>(byte);
  }

  const bf16* latent = a.latent + t * layout.head_dim;
  uint8_t* kv_codes = bytes_at(block, layout.kv_codes + int64_t{row} * (layout.head_dim / 2));
  uint8_t* kv_scales = bytes_at(block, layout.kv_scales + int64_t{row} * (layout.head_dim / 16));
  for (int first = 0; first < layout.head_dim; first += 64) {
    const int e = first + 2 * lane;
    const bool active = e < layout.head_dim;
    uint32_t y = active ? *reinterpret_cast<const uint32_t*>(latent + e) : 0u;
    const int rotated = e - (layout.head_dim - a.rope.rope_dim);
    if (active && rotated >= 0) y = rope_pair(y, rope_angle(rotated_at, a.rope.inv_freq[rotated / 2]));
    const float largest = __uint_as_float(group_max(magnitude_max(y), 8) << 16);
    if (!active) continue;
    // Not fmaxf: a NaN has to reach the scale.
    const float floored = largest < kFp4FloorE4M3 ? kFp4FloorE4M3 : largest;
    const uint32_t code = e4m3_codes(__fdiv_rn(floored, 6.0f), 0.0f) & 0xFFu;
    const float scale = e4m3_values(code).x;
    kv_codes[e / 2] =
        static_cast<uint8_t>(e2m1_code(__fdiv_rn(low_half(y), scale)) | e2m1_code(__fdiv_rn(high_half(y), scale)) << 4);
    if (lane % 8 == 0) kv_scales[e / 16] = static_cast<uint8_t>(code);
  }
}

}  // namespace

void write_cache_rows(CudaContext& context, const StepView& step, const RopeTable& rope, const bf16* latent,
                      const bf16* key, const bf16* k_norm, float eps, const SourceCache& cache) {
  if (step.rows == 0) return;
  const SourceLayout& layout = cache.layout;
  if (layout.key_dim % 64 != 0 || layout.head_dim % 32 != 0 || rope.rope_dim > layout.key_dim) {
    throw Error("cuda write_cache_rows", "keys of " + std::to_string(layout.key_dim) + " and rows of " +
                                             std::to_string(layout.head_dim) + " values do not fit a warp");
  }
  const auto blocks = static_cast<unsigned>((step.rows + kWarps - 1) / kWarps);
  write_cache_rows_kernel<<<blocks, kWarps * 32, 0, context.stream>>>({step, rope, latent, key, k_norm, eps, cache});
  MDI_CUDA_LAUNCHED(context, "write_cache_rows [" + std::to_string(step.rows) + "]");
}

}  // namespace mdi::cuda
