// Index scores of any shape (spec 6.6): a thread a key, in the oracle's order of sums. For small models; the released
// shape has index_scores.cu.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/index_keys.cuh"

namespace mdi::cuda {

namespace {

constexpr int kThreads = 128;

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads) plain_scores_kernel(const IndexRows r, float scale_of_weights) {
  const SourceLayout& layout = r.cache.layout;
  const int64_t t = r.first + int64_t{blockIdx.y};
  const int32_t visible = (r.step.position[t] + 1) / layout.ratio;
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const int32_t position = key_position<kFiltered>(r, t, i, visible);
  if (position < 0) return;
  const int64_t table = int64_t{r.step.seq_of_row[t]} * r.step.max_blocks;
  const std::byte* block = r.cache.blocks + r.step.block_table[table + position / layout.rows] * r.cache.block_bytes;
  const int32_t row = position % layout.rows;
  const auto* codes = reinterpret_cast<const uint8_t*>(block + layout.key_codes + row * (r.key_dim / 2));
  const auto* scales = reinterpret_cast<const uint8_t*>(block + layout.key_scales + row * (r.key_dim / 32));
  float total[16] = {};
  for (int h0 = 0; h0 < r.heads; h0 += 16) {
#pragma unroll
    for (int l = 0; l < 16; ++l) {
      if (h0 + l >= r.heads) break;
      const bf16* iq = r.iq + (t * r.heads + h0 + l) * r.key_dim;
      float dot = 0;
      for (int d = 0; d < r.key_dim; d += 2) {
        const float scale = e8m0_value(scales[d / 32]);
        const uint32_t byte = codes[d / 2];
        dot = __fmaf_rn(widen(iq[d]), __fmul_rn(e2m1_value(byte & 15u), scale), dot);
        dot = __fmaf_rn(widen(iq[d + 1]), __fmul_rn(e2m1_value(byte >> 4), scale), dot);
      }
      const float rectified = rounded(dot) < 0.0f ? 0.0f : rounded(dot);
      const float w = rounded(__fmul_rn(widen(r.w[t * r.heads + h0 + l]), scale_of_weights));
      total[l] = __fadd_rn(total[l], rounded(__fmul_rn(rectified, w)));
    }
  }
#pragma unroll
  for (int width = 8; width > 0; width /= 2) {
#pragma unroll
    for (int l = 0; l < width; ++l) total[l] = __fadd_rn(total[l], total[l + width]);
  }
  r.scores[(t - r.first) * r.stride + i] = narrow(total[0]);
}

}  // namespace

void plain_index_scores(CudaContext& context, const IndexRows& rows, float scale) {
  const dim3 grid(static_cast<unsigned>((rows.stride + kThreads - 1) / kThreads), static_cast<unsigned>(rows.count));
  const auto kernel = rows.candidates != nullptr ? plain_scores_kernel<true> : plain_scores_kernel<false>;
  kernel<<<grid, kThreads, 0, context.stream>>>(rows, scale);
  MDI_CUDA_LAUNCHED(context,
                    "index scores, plain [" + std::to_string(rows.count) + ", " + std::to_string(rows.stride) + "]");
}

}  // namespace mdi::cuda
