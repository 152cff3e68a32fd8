// Compressed rows, index keys, and the selections made from them (spec 6.5, 6.6), composed of linear.h, rows.h,
// compress.h and index.h. Which rows complete a pair, and how many keys a row sees, stays on the device.
#include <algorithm>
#include <vector>

#include "kernels/cuda/compress.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/stages.h"

namespace mdi::cuda {

namespace {

// Scores held at once: enough queries for every multiprocessor to have one tile of them at 65,536 keys and more.
constexpr int64_t kScoreBytes = int64_t{128} << 20;
constexpr int64_t kRowsAtOnce = 16;  // a tile of queries

template <class T>
std::vector<T> download(const CudaContext& context, const T* device, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  MDI_CUDA(cudaMemcpyAsync(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost, context.stream));
  MDI_CUDA(cudaStreamSynchronize(context.stream));
  return host;
}

void tap_latents(CudaContext& context, const StepView& step, const bf16* latent, int32_t ratio, int64_t dim) {
  if (!context.tap) return;
  const auto position = download(context, step.position, step.rows);
  const WorkspaceScope scope(context);
  bf16* const complete = context.workspace.take<bf16>(step.rows * dim, "latents to show");
  int64_t count = 0;
  for (int64_t t = 0; t < step.rows; ++t) {
    if ((position[static_cast<size_t>(t)] + 1) % ratio != 0) continue;
    MDI_CUDA(cudaMemcpyAsync(complete + count++ * dim, latent + t * dim, static_cast<size_t>(dim) * sizeof(bf16),
                             cudaMemcpyDeviceToDevice, context.stream));
  }
  tap(context, "latent", DType::kBF16, complete, {count, dim});
}

void tap_scores(CudaContext& context, const IndexRows& rows) {
  if (!context.tap) return;
  const auto position = download(context, rows.step.position + rows.first, rows.count);
  std::vector<int32_t> blocks;
  if (rows.candidates != nullptr) {
    blocks = download(context, rows.candidates + int64_t{rows.first} * rows.candidate_blocks,
                      int64_t{rows.count} * rows.candidate_blocks);
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t visible = (position[static_cast<size_t>(i)] + 1) / rows.cache.layout.ratio;
    int64_t scored = rows.candidates == nullptr ? visible : 0;
    for (int64_t b = 0; rows.candidates != nullptr && b < rows.candidate_blocks; ++b) {
      const int64_t block = blocks[static_cast<size_t>(i * rows.candidate_blocks + b)];
      if (block < 0) break;
      scored += std::clamp<int64_t>(visible - block * rows.block_size, 0, rows.block_size);
    }
    tap(context, "index_scores", DType::kBF16, rows.scores + i * rows.stride, {scored});
  }
}

}  // namespace

void compress(Context& base, const StepView& step, const CompressArgs& args) {
  CudaContext& context = cuda(base);
  const SourceLayout& layout = args.cache.layout;
  const int64_t rows = step.rows, dim = layout.head_dim;
  const WorkspaceScope scope(context);
  bf16* const latent = context.workspace.take<bf16>(rows * dim, "latents");
  bf16* const key = context.workspace.take<bf16>(rows * layout.key_dim, "index keys");
  if (layout.ratio == 1) {
    linear(context, args.x, rows, args.wkv, latent, nullptr, dim);
  } else {
    linear(context, args.x, rows, args.wkv, nullptr, args.step_pending, 2 * dim);
    linear(context, args.x, rows, args.wgate, nullptr, args.step_pending + dim, 2 * dim);
    compress_pairs(context, step, args, latent);
  }
  rms_norm_rows(context, latent, dim, args.norm, rows, dim, args.eps, latent, dim);
  linear(context, latent, rows, args.wk, key, nullptr, layout.key_dim);
  write_cache_rows(context, step, args.rope, latent, key, args.k_norm, args.eps, args.cache);
  tap_latents(context, step, latent, layout.ratio, dim);
}

void index_select(Context& base, const StepView& step, const IndexSelectArgs& args) {
  if (step.rows == 0) return;
  CudaContext& context = cuda(base);
  const WorkspaceScope scope(context);
  const int64_t rows = step.rows, width = int64_t{args.heads} * args.key_dim;
  bf16* const iq = context.workspace.take<bf16>(rows * width, "index queries");
  bf16* const w = context.workspace.take<bf16>(rows * args.heads, "index weights");
  context.begin_part(OpPart::kIndexQueries);
  linear(context, args.qr, rows, args.wq_b, iq, nullptr, width);
  linear(context, args.x, rows, args.weights_proj, w, nullptr, args.heads);
  rope_fp4_rows(context, args.rope, step.position, rows, args.heads, args.key_dim, iq, nullptr, nullptr, iq);

  IndexRows part{.step = step,
                 .first = 0,
                 .count = 0,
                 .cache = args.cache,
                 .heads = args.heads,
                 .key_dim = args.key_dim,
                 .iq = iq,
                 .w = w,
                 .candidates = nullptr,
                 .candidate_blocks = 0,
                 .block_size = 1,
                 .scores = nullptr,
                 .stride = 0};
  int64_t longest = int64_t{step.max_blocks} * args.cache.layout.rows;
  if (args.mode == IndexMode::kFiltered) {
    part.candidates = args.candidates;
    part.candidate_blocks = args.candidate_blocks;
    part.block_size = args.candidate_block_size;
    longest = std::min(longest, int64_t{args.candidate_blocks} * args.candidate_block_size);
  }
  part.stride = (longest + 7) / 8 * 8;
  const int64_t fitting = kScoreBytes / std::max<int64_t>(part.stride * 2, 1) / kRowsAtOnce * kRowsAtOnce;
  const int64_t at_once = std::min(rows, std::max(fitting, kRowsAtOnce));
  part.scores = context.workspace.take<bf16>(at_once * part.stride, "index scores");
  for (int64_t first = 0; first < rows; first += at_once) {
    part.first = static_cast<int32_t>(first);
    part.count = static_cast<int32_t>(std::min(at_once, rows - first));
    context.begin_part(OpPart::kIndexScores);
    index_scores(context, part);
    tap_scores(context, part);
    context.begin_part(OpPart::kIndexSelection);
    select_positions(context, part, args.topk, args.selected);
    if (args.mode == IndexMode::kCandidateSource) {
      select_blocks(context, part, args.candidate_block_size, args.candidate_blocks, args.candidates);
    }
  }
}

}  // namespace mdi::cuda
