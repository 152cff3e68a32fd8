#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"

namespace mdi::cpu {

namespace {
constexpr int kMaxRopePairs = 256;
}

void attention_input(Context& context, const StepView& step, const AttentionInputArgs& args) {
  const int64_t rank = args.wq_a.n;
  const int64_t q_width = int64_t{args.heads} * args.head_dim;
  if (args.window_rows != nullptr) {
    window_rows(context, step,
                {.eps = args.eps,
                 .x = args.x,
                 .wkv = args.wkv,
                 .norm = args.kv_norm,
                 .rope = args.rope,
                 .rows = args.window_rows});
  }
  linear(context, args.x, step.rows, args.wq_a, args.qr);
  cpu(context).pool.for_each(
      step.rows, [&](int64_t t) { rms_norm(args.qr + t * rank, args.q_norm, rank, args.eps, args.qr + t * rank); });
  linear(context, args.qr, step.rows, args.wq_b, args.q);
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    float cos_sin[2 * kMaxRopePairs];
    rope_angles(args.rope, step.position[t], cos_sin);
    for (int h = 0; h < args.heads; ++h) {
      rope_apply(cos_sin, args.rope.rope_dim, args.q + t * q_width + int64_t{h} * args.head_dim, args.head_dim, false);
    }
  });
}

void window_rows(Context& context, const StepView& step, const WindowRowsArgs& args) {
  const int64_t dim = args.wkv.n;
  const WindowRow layout{static_cast<int32_t>(dim)};
  std::vector<bf16> values(static_cast<size_t>(step.rows * dim));
  linear(context, args.x, step.rows, args.wkv, values.data());
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    float cos_sin[2 * kMaxRopePairs];
    rope_angles(args.rope, step.position[t], cos_sin);
    bf16* row = values.data() + t * dim;
    rms_norm(row, args.norm, dim, args.eps, row);
    rope_apply(cos_sin, args.rope.rope_dim, row, dim, false);
    std::byte* stored = args.rows + t * layout.bytes();
    act_quant(row, dim, WindowRow::codes(stored), layout.scales(stored));
  });
}

void sparse_attention(Context& context, const StepView& step, const SparseAttentionArgs& args) {
  const int32_t window = args.ring.window;
  const int32_t topk = args.selected != nullptr ? args.topk : 0;
  const int64_t dim = args.head_dim;
  const int64_t keys = int64_t{window} + (args.whole_block ? kMaxDraftRows : topk);
  const SourceLayout& layout = args.cache.layout;
  const int64_t width = int64_t{args.heads} * dim;

  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    thread_local std::vector<float> values;
    thread_local std::vector<uint8_t> valid;
    values.resize(static_cast<size_t>(keys * dim));
    valid.assign(static_cast<size_t>(keys), 0);
    const int32_t s = step.seq_of_row[t];
    const int32_t start = step.seq_start[s];
    const auto take_window_row = [&](int64_t at, int32_t position) {
      const std::byte* row =
          position >= start
              ? args.window_rows + int64_t{step.seq_row[s] + (position - start)} * args.ring.row.bytes()
              : args.ring.base + step.seq_slot[s] * args.ring.slot_stride + position % window * args.ring.row.bytes();
      act_dequant(WindowRow::codes(row), args.ring.row.scales(row), dim, values.data() + at * dim);
      valid[static_cast<size_t>(at)] = 1;
    };
    const int32_t oldest = args.whole_block ? start - window : step.position[t] - window + 1;
    for (int32_t i = 0; i < window; ++i) {
      if (oldest + i >= step.seq_floor[s]) take_window_row(i, oldest + i);
    }
    for (int32_t i = 0; args.whole_block && i < step.seq_count[s]; ++i) take_window_row(int64_t{window} + i, start + i);
    for (int32_t i = 0; i < topk; ++i) {
      const int32_t position = args.selected[t * topk + i];
      if (position < 0) continue;
      const int32_t block = step.block_table[int64_t{s} * step.max_blocks + position / layout.rows];
      std::byte* base = args.cache.blocks + block * args.cache.block_bytes;
      const int32_t row = position % layout.rows;
      fp4_dequant_e4m3(layout.kv_codes_at(base, row), layout.kv_scales_at(base, row), dim,
                       values.data() + (int64_t{window} + i) * dim);
      valid[static_cast<size_t>(window + i)] = 1;
    }
    attend(args.q + t * width, values.data(), valid.data(), keys, args.sink, args.scale, args.heads, args.head_dim,
           args.o + t * width);
  });
}

void attention_output(Context& context, const StepView& step, const AttentionOutputArgs& args) {
  const int64_t width = int64_t{args.heads} * args.head_dim;
  const int64_t group_width = width / args.groups;
  const int64_t ranks = int64_t{args.groups} * args.o_rank;
  cpu(context).pool.for_each(step.rows, [&](int64_t t) {
    float cos_sin[2 * kMaxRopePairs];
    rope_angles(args.rope, step.position[t], cos_sin);
    for (int h = 0; h < args.heads; ++h) {
      rope_apply(cos_sin, args.rope.rope_dim, args.o + t * width + int64_t{h} * args.head_dim, args.head_dim, true);
    }
  });
  thread_local std::vector<bf16> grouped;
  grouped.resize(static_cast<size_t>(step.rows * ranks));
  for (int g = 0; g < args.groups && step.rows > 0; ++g) {
    gemm(cpu(context).pool, {.x = args.o + g * group_width,
                             .m = step.rows,
                             .ldx = width,
                             .w = rows_of(args.wo_a, int64_t{g} * args.o_rank, args.o_rank),
                             .y_f32 = nullptr,
                             .y_bf16 = grouped.data() + int64_t{g} * args.o_rank,
                             .ldy = ranks});
  }
  linear(context, grouped.data(), step.rows, args.wo_b, args.y);
}

void commit_ring(Context& context, const StepView& step, const CommitRingArgs& args) {
  const int64_t bytes = args.ring.row.bytes();
  cpu(context).pool.for_each(step.sequences, [&](int64_t s) {
    const int32_t accepted = args.accepted[s];
    std::byte* ring = args.ring.base + step.seq_slot[s] * args.ring.slot_stride;
    for (int32_t i = std::max(0, accepted - args.ring.window); i < accepted; ++i) {
      const int32_t position = step.seq_start[s] + i;
      std::memcpy(ring + position % args.ring.window * bytes, args.window_rows + (step.seq_row[s] + i) * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

}  // namespace mdi::cpu
