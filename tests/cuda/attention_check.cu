// sparse_attention against the oracle: both kernels, every kind of key, NaN in every row that is no key of any query.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "device_data.cuh"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {

namespace {

struct Shape {
  int32_t heads, head_dim, window, topk, ratio;  // topk 0: no selection
  bool whole_block = false;
};

std::string text(const TestStep& step, const Shape& s, Rows kind) {
  return step.shape + " " + std::to_string(s.heads) + "x" + std::to_string(s.head_dim) + " w" +
         std::to_string(s.window) + (s.whole_block ? " block" : " k" + std::to_string(s.topk)) + " " + rows_name(kind);
}

// Everything that sparse_attention reads, on both sides, and its output.
struct Case {
  TestStep step;
  Mirror<bf16> q, o;
  Mirror<float> sink;
  Mirror<std::byte> window_rows, rings, pool;
  Mirror<int32_t> selected;
  SparseAttentionArgs host, device;
};

void quantise_window_row(const std::vector<float>& values, const WindowRow& layout, std::byte* row) {
  std::vector<bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), [](float v) { return to_bf16(v); });
  cpu::act_quant(rounded.data(), layout.head_dim, reinterpret_cast<e4m3*>(row), layout.scales(row));
}

Case make_case(Random& random, const std::vector<TestSequence>& sequences, const Shape& s, Rows kind) {
  Case c;
  c.step = make_step(random, sequences, 100);
  const int64_t rows = c.step.host.rows, width = int64_t{s.heads} * s.head_dim;
  const WindowRow layout{s.head_dim};
  const int64_t row_bytes = layout.bytes(), ring_bytes = s.window * row_bytes, slot_stride = 2 * ring_bytes;
  const auto poisoned = [](int64_t bytes) {
    return std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{0xFF});
  };

  std::vector<std::byte> window_rows = poisoned(rows * row_bytes), rings = poisoned(c.step.slots * slot_stride);
  for (int64_t t = 0; t < rows; ++t) {
    quantise_window_row(random_floats(random, 1, s.head_dim, kind), layout, window_rows.data() + t * row_bytes);
  }
  for (const TestSequence& q : sequences) {  // the ring of the second of two layers
    std::byte* const ring = rings.data() + q.slot * slot_stride + ring_bytes;
    for (int32_t p = std::max({0, q.floor, q.start - s.window}); p < q.start; ++p) {
      quantise_window_row(random_floats(random, 1, s.head_dim, kind), layout, ring + p % s.window * row_bytes);
    }
  }

  SourceCache cache;
  if (s.topk > 0) {
    const CacheLayout blocks = make_cache_layout({2, s.ratio}, s.head_dim, 128);
    cache = {.blocks = nullptr, .block_bytes = blocks.block_bytes, .layout = blocks.sources[1]};
  }
  std::vector<std::byte> pool = poisoned(c.step.pool_blocks * cache.block_bytes);
  std::vector<int32_t> selected(static_cast<size_t>(rows * s.topk), -1);
  for (int64_t t = 0; t < rows && s.topk > 0; ++t) {
    const int32_t visible = (c.step.position.host[static_cast<size_t>(t)] + 1) / s.ratio;
    const int32_t sequence = c.step.seq_of_row.host[static_cast<size_t>(t)];
    // About topk of them, ascending; row 1 has holes, row 2 nothing.
    int32_t used = 0, left = std::min(visible, t % 4 == 3 ? s.topk - 1 : s.topk);
    for (int32_t j = 0; j < visible && left > 0; ++j) {
      if (random.below(visible - j) >= left) continue;
      --left;
      const int32_t slot = used++;
      if (t == 2 || (t == 1 && j % 3 == 0)) continue;
      selected[static_cast<size_t>(t * s.topk + slot)] = j;
      std::byte* const block =
          pool.data() +
          c.step.block_table.host[static_cast<size_t>(sequence * c.step.host.max_blocks + j / cache.layout.rows)] *
              cache.block_bytes;
      if (std::to_integer<int>(
              *reinterpret_cast<std::byte*>(cache.layout.kv_scales_at(block, j % cache.layout.rows))) != 0xFF) {
        continue;  // another query's key as well
      }
      const auto values = random_bf16(random, 1, s.head_dim, kind);
      cpu::fp4_quant_e4m3(values.data(), s.head_dim, cache.layout.kv_codes_at(block, j % cache.layout.rows),
                          cache.layout.kv_scales_at(block, j % cache.layout.rows));
    }
  }

  c.q = Mirror<bf16>(random_bf16(random, rows * s.heads, s.head_dim, kind == Rows::kPositive ? kind : Rows::kGaussian));
  c.sink = Mirror<float>(random_floats(random, 1, s.heads, Rows::kGaussian, 2.0f));
  c.window_rows = Mirror<std::byte>(std::move(window_rows));
  c.rings = Mirror<std::byte>(std::move(rings));
  c.pool = Mirror<std::byte>(std::move(pool));
  c.selected = Mirror<int32_t>(std::move(selected));
  c.o = Mirror<bf16>(static_cast<size_t>(rows * width));
  const auto arguments = [&](auto side) {
    SparseAttentionArgs a;
    a.heads = s.heads;
    a.head_dim = s.head_dim;
    a.topk = s.topk;
    a.whole_block = s.whole_block;
    a.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    a.q = side(c.q);
    a.sink = side(c.sink);
    a.window_rows = side(c.window_rows);
    a.ring = {.base = side(c.rings) + ring_bytes, .slot_stride = slot_stride, .window = s.window, .row = layout};
    a.selected = s.topk > 0 ? side(c.selected) : nullptr;
    a.cache = cache;
    a.cache.blocks = side(c.pool);
    a.o = side(c.o);
    return a;
  };
  c.host = arguments([](auto& m) { return m.host.data(); });
  c.device = arguments([](auto& m) { return m.device.data(); });
  return c;
}

// Two roundings of bf16(P) to either side move a row by less than 1% of its RMS.
void check(Harness& h, const std::vector<TestSequence>& sequences, const Shape& s, Rows kind = Rows::kGaussian) {
  Random random(static_cast<uint64_t>(s.heads * 1000003 + s.head_dim * 101 + s.topk + static_cast<int>(kind)));
  Case c = make_case(random, sequences, s, kind);
  cpu::sparse_attention(h.cpu(), c.step.host, c.host);
  cuda::sparse_attention(h.cuda(), c.step.device, c.device);
  h.report("attention", text(c.step, s, kind), compare(c.o, s.head_dim, {.ulps = 1, .row = 1e-2}));
}

// A row alone, or with others behind it, has the bits that it has in the whole step.
void check_invariance(Harness& h, const std::vector<TestSequence>& sequences, const Shape& s) {
  Random random(77);
  Case c = make_case(random, sequences, s, Rows::kGaussian);
  cuda::sparse_attention(h.cuda(), c.step.device, c.device);
  const auto whole = c.o.device.download();
  const int64_t width = int64_t{s.heads} * s.head_dim;
  for (const int32_t rows : {1, 7}) {
    if (h.small() && rows == 1) continue;
    c.o.device.poison();
    for (int32_t t = 0; t < c.step.host.rows; t += rows) {
      StepView view = c.step.device;
      view.rows = std::min(rows, c.step.host.rows - t);
      view.position += t;
      view.seq_of_row += t;
      SparseAttentionArgs a = c.device;
      a.q += t * width;
      a.o += t * width;
      if (a.selected != nullptr) a.selected += int64_t{t} * s.topk;
      cuda::sparse_attention(h.cuda(), view, a);
    }
    h.report("attention invariance", text(c.step, s, Rows::kGaussian) + " by " + std::to_string(rows),
             compare_bits(c.o.device.download(), whole));
  }
}

// ---- timing ---------------------------------------------------------------------------------------------------------
void fill_integers(DeviceArray<int32_t>& array, const std::function<int32_t(int64_t)>& value) {
  std::vector<int32_t> values(array.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<int64_t>(i));
  array.upload(values);
}

void time_attention(Harness& h, int32_t sequences, int32_t count, int32_t start, int32_t ratio) {
  const Shape s{64, 512, 128, ratio > 0 ? 512 : 0, ratio};
  Random random(5);
  std::vector<TestSequence> list;
  for (int32_t i = 0; i < sequences; ++i) list.push_back({i, start, count, 0});
  TestStep step = make_step(random, list, 100);
  const int64_t rows = step.host.rows, width = int64_t{s.heads} * s.head_dim;
  const WindowRow layout{s.head_dim};
  const CacheLayout blocks = make_cache_layout({std::max(ratio, 1)}, s.head_dim, 128);
  DeviceArray<bf16> q(static_cast<size_t>(rows * width)), o(q.size());
  DeviceArray<float> sink(size_t{64});
  DeviceArray<std::byte> window_rows(static_cast<size_t>(rows * layout.bytes()));
  DeviceArray<std::byte> rings(static_cast<size_t>(sequences * s.window * layout.bytes()));
  DeviceArray<std::byte> pool(static_cast<size_t>(step.pool_blocks * blocks.block_bytes));
  DeviceArray<int32_t> selected(static_cast<size_t>(std::max<int64_t>(rows * s.topk, 1)));
  fill(Fill::kBF16, q.data(), rows * width, 1e-2f);
  fill(Fill::kFloats, sink.data(), 64);
  fill(Fill::kScales, window_rows.data(), static_cast<int64_t>(window_rows.size()));  // any codes will do
  fill(Fill::kScales, rings.data(), static_cast<int64_t>(rings.size()));
  fill(Fill::kBytes, pool.data(), static_cast<int64_t>(pool.size()));
  const SourceLayout& source = blocks.sources[0];
  std::vector<uint8_t> scales(static_cast<size_t>(source.rows * s.head_dim / 16), 0x38);  // 1
  for (int64_t b = 0; b < step.pool_blocks; ++b) {
    MDI_CUDA(cudaMemcpy(pool.data() + b * blocks.block_bytes + source.kv_scales, scales.data(), scales.size(),
                        cudaMemcpyHostToDevice));
  }
  if (s.topk > 0) {
    fill_integers(selected, [&](int64_t i) {  // ascending, spread over what is visible
      const int64_t visible = (start + 1) / ratio, stride = visible / s.topk;
      return static_cast<int32_t>(i % s.topk * stride + random.below(stride));
    });
  }
  SparseAttentionArgs a;
  a.heads = s.heads;
  a.head_dim = s.head_dim;
  a.topk = s.topk;
  a.scale = 1.0f / std::sqrt(512.0f);
  a.q = q.data();
  a.sink = sink.data();
  a.window_rows = window_rows.data();
  a.ring = {.base = rings.data(), .slot_stride = s.window * layout.bytes(), .window = s.window, .row = layout};
  a.selected = s.topk > 0 ? selected.data() : nullptr;
  a.cache = {.blocks = pool.data(), .block_bytes = blocks.block_bytes, .layout = source};
  a.o = o.data();
  Work work;
  work.flops = 4.0 * static_cast<double>(rows * width) * (s.window + s.topk);
  work.bytes = 4.0 * static_cast<double>(rows * width) + 288.0 * static_cast<double>(rows) * s.topk;
  h.time("timed attention", step.shape + " at " + std::to_string(start) + " ratio " + std::to_string(ratio), work,
         [&](int) { cuda::sparse_attention(h.cuda(), step.device, a); });
}

void run(Harness& h) {
  const Shape released{64, 512, 128, 512, 2};
  const std::vector<TestSequence> mixed = {{2, 0, 5, 0}, {0, 126, 4, 0}, {3, 1500, 9, 0}, {1, 700, 3, 650}};
  if (h.wants("attention")) {
    check(h, {}, released);
    check(h, mixed, released);
    check(h, mixed, {8, 64, 128, 16, 1});
    check(h, mixed, {3, 96, 24, 8, 2});
    check(h, mixed, {64, 512, 128, 0, 0});
    check(h, {{0, 300, 5, 0}, {2, 40, 16, 0}, {1, 900, 1, 860}}, {64, 512, 128, 0, 0, true});
    check(h, {{0, 300, 5, 0}, {2, 40, 16, 0}, {1, 900, 1, 860}}, {8, 64, 128, 0, 0, true});
    if (!h.small()) {
      check(h, {{0, 0, 1, 0}}, released);
      check(h, {{1, 0, 2, 0}}, {8, 64, 128, 16, 1});
      for (const Rows kind : kAllRows) check(h, mixed, {64, 512, 128, 512, 1}, kind);
      check(h, {{0, 3000, 40, 0}, {1, 0, 300, 0}}, released);
      check(h, mixed, {128, 512, 128, 500, 2});
      check(h, mixed, {16, 512, 128, 512, 1});
      check(h, {{0, 5000, 400, 0}}, {8, 64, 128, 64, 1});
    }
  }
  if (h.wants("invariance")) {
    check_invariance(h, mixed, released);
    check_invariance(h, mixed, {8, 64, 128, 16, 1});
    if (!h.small()) check_invariance(h, {{0, 2000, 300, 0}}, released);
  }
  if (h.timing() && h.wants("timed attention")) {
    time_attention(h, 1, 4096, 126976, 2);
    time_attention(h, 1, 4096, 126976, 1);
    time_attention(h, 1, 4096, 126976, 0);
    time_attention(h, 64, 1, 8191, 2);
    time_attention(h, 64, 4, 8191, 2);
  }
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) {
  mdi::check::Harness h("attention", argc, argv);
  mdi::check::run(h);
  return h.finish();
}
