// The oracle on attention: projections, compressor, index, sparse attention.
#include "engine/bench/oracle_parts.h"

#ifdef MDI_WITH_CUDA

#include <algorithm>
#include <cstring>

namespace mdi::bench {

namespace {

// Values of stored window rows.
std::vector<double> window_values(const std::vector<std::byte>& stored, const WindowRow& layout) {
  std::vector<double> out;
  for (size_t at = 0; at < stored.size(); at += static_cast<size_t>(layout.bytes())) {
    const std::byte* row = stored.data() + at;
    for (int32_t i = 0; i < layout.head_dim; ++i) {
      out.push_back(double{to_float(WindowRow::codes(row)[i])} * double{to_float(layout.scales(row)[i / 32])});
    }
  }
  return out;
}

}  // namespace

void Oracle::check(const StepView&, const AttentionInputArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  run();
  const int64_t rank = a.wq_a.n, width = int64_t{a.heads} * a.head_dim;
  const WindowRow layout{a.head_dim};
  AttentionInputArgs host = a;
  const auto x = rows(a.x, a.wq_a.k);
  host.x = x.data();
  host.wq_a = weight(a.wq_a);
  host.wq_b = weight(a.wq_b);
  host.wkv = weight(a.wkv);
  host.q_norm = keep(a.q_norm, rank);
  host.kv_norm = keep(a.kv_norm, a.head_dim);
  host.rope = rope(a.rope);
  std::vector<bf16> qr(static_cast<size_t>(kRows * rank)), q(static_cast<size_t>(kRows * width));
  std::vector<std::byte> stored(static_cast<size_t>(kRows * layout.bytes()));
  host.qr = qr.data();
  host.q = q.data();
  host.window_rows = stored.data();
  cpu_->ops->attention_input(*cpu_, view_, host);
  compare("attention input qr", rows(static_cast<const bf16*>(a.qr), rank), qr, rank, {.ulps = 2, .row = 1e-4});
  compare("attention input q", rows(static_cast<const bf16*>(a.q), width), q, a.head_dim, kQuantised);
  compare("attention input window",
          window_values(rows(static_cast<const std::byte*>(a.window_rows), layout.bytes()), layout),
          window_values(stored, layout), a.head_dim, {.ulps = 16, .row = 1e-3});
}

void Oracle::check(const StepView&, const CompressArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  run();
  const SourceLayout& layout = a.cache.layout;
  const int64_t dim = layout.head_dim;
  CompressArgs host = a;
  const auto x = rows(a.x, a.wkv.k);
  host.x = x.data();
  host.wkv = weight(a.wkv);
  if (a.wgate.data != nullptr) host.wgate = weight(a.wgate);
  host.norm = keep(a.norm, dim);
  host.wk = weight(a.wk);
  host.k_norm = keep(a.k_norm, layout.key_dim);
  host.rope = rope(a.rope);
  host.pending = nullptr;  // pairs are whole
  std::vector<float> step_pending(static_cast<size_t>(kRows * 2 * dim));
  host.step_pending = step_pending.data();
  host.cache = pool(a.cache, false);
  cpu_->ops->compress(*cpu_, view_, host);
  if (layout.ratio > 1) {
    compare("compress a, g", rows(static_cast<const float*>(a.step_pending), 2 * dim), step_pending, 2 * dim,
            {.ulps = 0, .row = 1e-4});  // fp32 sums of 5,120 products in another order: 3e-5 of a row at most
  }
  std::vector<double> got_key, want_key, got_row, want_row;
  for (size_t i = 0; i < kRows; ++i) {
    if ((position_[i] + 1) % layout.ratio != 0) continue;
    const int64_t j = position_[i] / layout.ratio, row = j % layout.rows;
    const int64_t block = int64_t{table_[static_cast<size_t>(j / layout.rows)]} * a.cache.block_bytes;
    std::byte* const here = host.cache.blocks + block;
    std::byte* const there = a.cache.blocks + block;
    const auto codes = fetch(layout.kv_codes_at(there, row), layout.kv_code_bytes());
    const auto scales = fetch(layout.kv_scales_at(there, row), dim / 16);
    const auto key_codes = fetch(layout.key_codes_at(there, row), layout.key_code_bytes());
    const auto key_scales = fetch(layout.key_scales_at(there, row), layout.key_dim / 32);
    const auto value = [](const uint8_t* packed, int64_t at) {
      const uint8_t byte = packed[at / 2];
      return double{at % 2 == 0 ? e2m1_low(byte) : e2m1_high(byte)};
    };
    for (int64_t d = 0; d < dim; ++d) {
      got_row.push_back(value(codes.data(), d) * double{to_float(scales[static_cast<size_t>(d / 16)])});
      want_row.push_back(value(layout.kv_codes_at(here, row), d) *
                         double{to_float(layout.kv_scales_at(here, row)[d / 16])});
    }
    for (int64_t d = 0; d < layout.key_dim; ++d) {
      got_key.push_back(value(key_codes.data(), d) * double{to_float(key_scales[static_cast<size_t>(d / 32)])});
      want_key.push_back(value(layout.key_codes_at(here, row), d) *
                         double{to_float(layout.key_scales_at(here, row)[d / 32])});
    }
  }
  // A bf16 rounding on the other side of a tie moves a code; one in 200 may.
  add(compare_rows("compress rows", gpu_.layer, got_row, want_row, dim, {.ulps = 0, .row = 0, .share = 5e-3}));
  add(compare_rows("compress keys", gpu_.layer, got_key, want_key, layout.key_dim,
                   {.ulps = 0, .row = 0, .share = 5e-3}));
}

void Oracle::check(const StepView&, const IndexSelectArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  IndexSelectArgs host = a;
  const auto x = rows(a.x, a.weights_proj.k);
  const auto qr = rows(a.qr, a.wq_b.k);
  host.x = x.data();
  host.qr = qr.data();
  host.wq_b = weight(a.wq_b);
  host.weights_proj = weight(a.weights_proj);
  host.rope = rope(a.rope);
  host.cache = pool(a.cache, true);
  std::vector<int32_t> candidates(static_cast<size_t>(kRows * a.candidate_blocks), -1);
  if (a.mode == IndexMode::kFiltered) {
    candidates = rows(static_cast<const int32_t*>(a.candidates), a.candidate_blocks);
  }
  std::vector<int32_t> selected(static_cast<size_t>(kRows * a.topk));
  host.candidates = candidates.data();
  host.selected = selected.data();
  run();
  cpu_->ops->index_select(*cpu_, view_, host);
  // Where a rounding moves one of a query's 4,096 fp4 codes, all its scores move a little: about 2% of the choice.
  add(compare_choices("index selection", gpu_.layer, rows(static_cast<const int32_t*>(a.selected), a.topk), selected,
                      a.topk, 0.03));
  if (a.mode == IndexMode::kCandidateSource) {
    add(compare_choices("index candidates", gpu_.layer,
                        rows(static_cast<const int32_t*>(a.candidates), a.candidate_blocks), candidates,
                        a.candidate_blocks, 0.03));
  }
}

void Oracle::check(const StepView&, const SparseAttentionArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  run();
  const int64_t width = int64_t{a.heads} * a.head_dim, bytes = a.ring.row.bytes(), ring_bytes = a.ring.window * bytes;
  SparseAttentionArgs host = a;
  const auto q = rows(a.q, width);
  host.q = q.data();
  host.sink = keep(a.sink, a.heads);
  const auto window_rows = rows(a.window_rows, bytes);
  host.window_rows = window_rows.data();
  // The ring before each pair: rows of this step, and of the slot's ring where they are older.
  const auto slot =
      fetch(static_cast<const std::byte*>(a.ring.base) + step_.seq_slot[0] * a.ring.slot_stride, ring_bytes);
  std::vector<std::byte> rings(static_cast<size_t>(kPairs * ring_bytes));
  for (size_t i = 0; i < kPairs; ++i) {
    std::byte* const ring = rings.data() + static_cast<int64_t>(i) * ring_bytes;
    std::memcpy(ring, slot.data(), static_cast<size_t>(ring_bytes));
    const int32_t first = std::max(0, sampled_[2 * i] - a.ring.window);
    const auto own = fetch(a.window_rows + first * bytes, (sampled_[2 * i] - first) * bytes);
    for (int32_t r = first; r < sampled_[2 * i]; ++r) {
      const int32_t position = step_.position[static_cast<size_t>(r)];
      std::memcpy(ring + position % a.ring.window * bytes, own.data() + (r - first) * bytes,
                  static_cast<size_t>(bytes));
    }
  }
  host.ring = {.base = rings.data(), .slot_stride = ring_bytes, .window = a.ring.window, .row = a.ring.row};
  std::vector<int32_t> selected;
  if (a.selected != nullptr) {
    selected = rows(a.selected, a.topk);
    host.selected = selected.data();
    host.cache = pool(a.cache, true);
  }
  std::vector<bf16> o(static_cast<size_t>(kRows * width));
  host.o = o.data();
  cpu_->ops->sparse_attention(*cpu_, view_, host);
  // Two roundings of bf16(P) to either side move a row by less than 1% of its RMS.
  compare("sparse attention o", rows(static_cast<const bf16*>(a.o), width), o, a.head_dim, {.ulps = 1, .row = 1e-2});
}

void Oracle::check(const StepView&, const AttentionOutputArgs& a, const Run& run) {
  if (!wanted()) return run();
  const Borrowed borrowed(*this);
  const int64_t width = int64_t{a.heads} * a.head_dim;
  AttentionOutputArgs host = a;
  auto o = rows(static_cast<const bf16*>(a.o), width);
  host.o = o.data();
  host.wo_a = weight(a.wo_a);
  host.wo_b = weight(a.wo_b);
  host.rope = rope(a.rope);
  std::vector<bf16> y(static_cast<size_t>(kRows * a.wo_b.n));
  host.y = y.data();
  run();
  cpu_->ops->attention_output(*cpu_, view_, host);
  compare("attention output y", rows(static_cast<const bf16*>(a.y), a.wo_b.n), y, a.wo_b.n, kQuantised);
}

}  // namespace mdi::bench

#endif
