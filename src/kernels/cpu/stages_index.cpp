// Compressed rows, index keys, and the selections made from them (6.5, 6.6).
#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

namespace {

constexpr int kMaxRopePairs = 256;
constexpr int64_t kScoreChunk = 2048;  // keys that one task scores: enough to pay for a task, small enough to share out
constexpr int64_t kScoreRows = 8;      // queries whose scores are held at once

std::byte* block_of(const StepView& step, const SourceCache& cache, int32_t s, int64_t position) {
  const int32_t id = step.block_table[int64_t{s} * step.max_blocks + position / cache.layout.rows];
  return cache.blocks + id * cache.block_bytes;
}

// The pair's earlier token: in this step, or the slot's pending row.
const float* earlier_of_pair(const StepView& step, const CompressArgs& args, int64_t t, int64_t width) {
  const int32_t s = step.seq_of_row[t];
  if (t > step.seq_row[s]) return args.step_pending + (t - 1) * width;
  return args.pending + step.seq_slot[s] * args.pending_stride;
}

// Key and KV row of the latent that token t completes, from the normalised, unrotated latent (spec 6.5: key first).
void write_row(const StepView& step, const CompressArgs& args, int64_t t, const bf16* latent, const bf16* wk_product) {
  const SourceLayout& layout = args.cache.layout;
  const int64_t position = step.position[t] / layout.ratio;
  std::byte* block = block_of(step, args.cache, step.seq_of_row[t], position);
  const int64_t row = position % layout.rows;
  float cos_sin[2 * kMaxRopePairs];
  rope_angles(args.rope, static_cast<int32_t>(position * layout.ratio), cos_sin);

  thread_local std::vector<bf16> scratch;
  scratch.resize(static_cast<size_t>(std::max(layout.key_dim, layout.head_dim)));
  rms_norm(wk_product, args.k_norm, layout.key_dim, args.eps, scratch.data());
  rope_apply(cos_sin, args.rope.rope_dim, scratch.data(), layout.key_dim, false);
  fp4_quant_e8m0(scratch.data(), layout.key_dim, layout.key_codes_at(block, row), layout.key_scales_at(block, row));

  std::copy_n(latent, layout.head_dim, scratch.data());
  rope_apply(cos_sin, args.rope.rope_dim, scratch.data(), layout.head_dim, false);
  fp4_quant_e4m3(scratch.data(), layout.head_dim, layout.kv_codes_at(block, row), layout.kv_scales_at(block, row));
}

}  // namespace

void compress(Context& context, const StepView& step, const CompressArgs& args) {
  const SourceLayout& layout = args.cache.layout;
  const int64_t dim = layout.head_dim;
  std::vector<int32_t> completing;  // rows of the step that complete a latent
  for (int32_t t = 0; t < step.rows; ++t) {
    if ((step.position[t] + 1) % layout.ratio == 0) completing.push_back(t);
  }
  const auto latents = static_cast<int64_t>(completing.size());
  std::vector<bf16> latent(static_cast<size_t>(latents * dim));

  if (layout.ratio == 1) {
    linear(context, args.x, step.rows, args.wkv, latent.data());
  } else {
    const int64_t width = 2 * dim;  // a then g
    for (const auto& [weight, offset] : {std::pair{args.wkv, int64_t{0}}, std::pair{args.wgate, dim}}) {
      if (step.rows == 0) break;
      gemm(cpu(context).pool, {.x = args.x,
                               .m = step.rows,
                               .ldx = weight.k,
                               .w = weight,
                               .y_f32 = args.step_pending + offset,
                               .y_bf16 = nullptr,
                               .ldy = width});
    }
    cpu(context).pool.for_each(latents, [&](int64_t i) {
      const int64_t t = completing[static_cast<size_t>(i)];
      const float* earlier = earlier_of_pair(step, args, t, width);
      const float* later = args.step_pending + t * width;
      compress_pair(earlier, earlier + dim, later, later + dim, dim, latent.data() + i * dim);
    });
  }
  cpu(context).pool.for_each(latents, [&](int64_t i) {
    rms_norm(latent.data() + i * dim, args.norm, dim, args.eps, latent.data() + i * dim);
  });
  std::vector<bf16> keys(static_cast<size_t>(latents * layout.key_dim));
  linear(context, latent.data(), latents, args.wk, keys.data());
  cpu(context).pool.for_each(latents, [&](int64_t i) {
    write_row(step, args, completing[static_cast<size_t>(i)], latent.data() + i * dim,
              keys.data() + i * layout.key_dim);
  });
  tap(context, "latent", DType::kBF16, latent.data(), {latents, dim});
}

namespace {

struct Query {
  std::vector<float> iq;        // [T, heads, key_dim], on the fp4 grid
  std::vector<float> weight;    // [T, heads]
  std::vector<int64_t> scored;  // [T] how many positions are scored
};

Query make_queries(Context& context, const StepView& step, const IndexSelectArgs& args) {
  const int64_t width = int64_t{args.heads} * args.key_dim;
  const auto rows = static_cast<size_t>(step.rows);
  std::vector<bf16> iq(rows * static_cast<size_t>(width));
  std::vector<bf16> w(rows * static_cast<size_t>(args.heads));
  linear(context, args.qr, step.rows, args.wq_b, iq.data());
  linear(context, args.x, step.rows, args.weights_proj, w.data());

  // key_dim^-0.5 * heads^-0.5: 2^-6 at the released size, and a power of two or not elsewhere (6.6).
  const auto scale = static_cast<float>(std::pow(static_cast<double>(args.key_dim), -0.5) *
                                        std::pow(static_cast<double>(args.heads), -0.5));
  Query query;
  query.iq.resize(iq.size());
  query.weight.resize(w.size());
  query.scored.resize(rows);
  std::transform(w.begin(), w.end(), query.weight.begin(), [scale](bf16 v) { return round_bf16(to_float(v) * scale); });
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    float cos_sin[2 * kMaxRopePairs];
    rope_angles(args.rope, step.position[t], cos_sin);
    thread_local std::vector<uint8_t> codes;
    thread_local std::vector<e8m0> scales;
    codes.resize(static_cast<size_t>(args.key_dim / 2));
    scales.resize(static_cast<size_t>(args.key_dim / 32));
    for (int h = 0; h < args.heads; ++h) {
      bf16* head = iq.data() + t * width + int64_t{h} * args.key_dim;
      rope_apply(cos_sin, args.rope.rope_dim, head, args.key_dim, false);
      fp4_quant_e8m0(head, args.key_dim, codes.data(), scales.data());
      fp4_dequant_e8m0(codes.data(), scales.data(), args.key_dim,
                       query.iq.data() + t * width + int64_t{h} * args.key_dim);
    }
  });
  return query;
}

// The positions that a filtered query scores: its candidate blocks, cut at `visible`.
void candidate_positions(const IndexSelectArgs& args, int64_t t, int64_t visible, std::vector<int32_t>& out) {
  out.clear();
  for (int32_t i = 0; i < args.candidate_blocks; ++i) {
    const int32_t block = args.candidates[t * args.candidate_blocks + i];
    if (block < 0) break;
    const int64_t begin = int64_t{block} * args.candidate_block_size;
    for (int64_t p = begin; p < std::min(begin + args.candidate_block_size, visible); ++p) {
      out.push_back(static_cast<int32_t>(p));
    }
  }
}

}  // namespace

void index_select(Context& context, const StepView& step, const IndexSelectArgs& args) {
  const SourceLayout& layout = args.cache.layout;
  const int64_t key_dim = args.key_dim;
  ThreadPool& pool = cpu(context).pool;
  context.begin_part(OpPart::kIndexQueries);
  Query query = make_queries(context, step, args);

  std::vector<int32_t> positions[kScoreRows];  // of filtered queries
  std::vector<bf16> scores[kScoreRows];
  for (int64_t first = 0; first < step.rows; first += kScoreRows) {
    const int64_t group = std::min(kScoreRows, step.rows - first);
    int64_t longest = 0;
    context.begin_part(OpPart::kIndexScores);
    for (int64_t r = 0; r < group; ++r) {
      const int64_t t = first + r;
      int64_t& scored = query.scored[static_cast<size_t>(t)];
      scored = (step.position[t] + 1) / layout.ratio;
      if (args.mode == IndexMode::kFiltered) {
        candidate_positions(args, t, scored, positions[r]);
        scored = static_cast<int64_t>(positions[r].size());
      }
      scores[r].resize(static_cast<size_t>(scored));
      longest = std::max(longest, scored);
    }
    const int64_t chunks = (longest + kScoreChunk - 1) / kScoreChunk;
    pool.for_each(group * chunks, [&](int64_t task) {
      const int64_t r = task / chunks;
      const int64_t t = first + r;
      const int64_t begin = task % chunks * kScoreChunk;
      const int64_t end = std::min(begin + kScoreChunk, query.scored[static_cast<size_t>(t)]);
      if (begin >= end) return;
      thread_local std::vector<float> keys;
      keys.resize(static_cast<size_t>((end - begin) * key_dim));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t position = args.mode == IndexMode::kFiltered ? positions[r][static_cast<size_t>(i)] : i;
        std::byte* block = block_of(step, args.cache, step.seq_of_row[t], position);
        const int64_t row = position % layout.rows;
        fp4_dequant_e8m0(layout.key_codes_at(block, row), layout.key_scales_at(block, row), key_dim,
                         keys.data() + (i - begin) * key_dim);
      }
      index_scores(query.iq.data() + t * args.heads * key_dim, query.weight.data() + t * args.heads, keys.data(),
                   end - begin, args.heads, args.key_dim, scores[r].data() + begin);
    });
    context.begin_part(OpPart::kIndexSelection);
    pool.for_each(group, [&](int64_t r) {
      const int64_t t = first + r;
      const int64_t n = query.scored[static_cast<size_t>(t)];
      const bool filtered = args.mode == IndexMode::kFiltered;
      select_topk(scores[r].data(), filtered ? positions[r].data() : nullptr, n, args.topk,
                  args.selected + t * args.topk);
      if (args.mode == IndexMode::kCandidateSource) {
        select_candidates(scores[r].data(), n, args.candidate_block_size, args.candidate_blocks,
                          args.candidates + t * args.candidate_blocks);
      }
    });
    for (int64_t r = 0; context.tap && r < group; ++r) {
      const int64_t n = query.scored[static_cast<size_t>(first + r)];
      tap(context, "index_scores", DType::kBF16, scores[r].data(), {n});
    }
  }
}

void commit_pending(Context&, const StepView& step, const CommitPendingArgs& args) {
  const int64_t width = int64_t{2} * args.head_dim;
  for (int32_t s = 0; s < step.sequences; ++s) {
    const int32_t accepted = args.accepted[s];
    if (accepted == 0 || (step.seq_start[s] + accepted) % 2 == 0) continue;
    std::copy_n(args.step_pending + (step.seq_row[s] + accepted - 1) * width, width,
                args.pending + step.seq_slot[s] * args.pending_stride);
  }
}

}  // namespace mdi::cpu
