// The compressor's cache rows, index scores and both selections, against the oracle. Products of small integers are
// exact in any order of summation, so everything behind them is compared bit for bit.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {

namespace {

// ---- inputs ---------------------------------------------------------------------------------------------------------
// Multiples of `unit`, at most 16 of them: sums of up to 8,192 products are exact in fp32.
std::vector<bf16> grid_values(Random& random, int64_t count, float unit) {
  std::vector<bf16> out(static_cast<size_t>(count));
  for (bf16& v : out) v = to_bf16(static_cast<float>(random.below(33) - 16) * unit);
  return out;
}

struct GridWeight {
  Mirror<bf16> values;
  LinearWeight host, device;
  GridWeight(Random& random, int64_t n, int64_t k) : values(grid_values(random, n * k, 1.0f / 32)) {
    host = {.kind = WeightKind::kBF16, .data = values.host.data(), .scale = nullptr, .n = n, .k = k};
    device = host;
    device.data = values.device.data();
  }
};

struct Rope {
  Mirror<float> inv_freq;
  RopeTable host, device;
  explicit Rope(int32_t dim) {
    std::vector<float> f(static_cast<size_t>(dim / 2));
    cpu::rope_frequencies({.rope_dim = dim, .theta = 160000, .factor = 16, .original_seq_len = 65536}, f.data());
    inv_freq = Mirror<float>(std::move(f));
    host = {.inv_freq = inv_freq.host.data(), .rope_dim = dim};
    device = {.inv_freq = inv_freq.device.data(), .rope_dim = dim};
  }
};

struct Cache {
  Mirror<std::byte> bytes;
  SourceCache host, device;
  Cache(int64_t blocks, int32_t ratio, int32_t head_dim, int32_t key_dim) {
    const CacheLayout layout = make_cache_layout({ratio}, head_dim, key_dim);
    bytes = Mirror<std::byte>(static_cast<size_t>(blocks * layout.block_bytes));
    host = {.blocks = bytes.host.data(), .block_bytes = layout.block_bytes, .layout = layout.sources[0]};
    device = host;
    device.blocks = bytes.device.data();
  }
};

enum class Keys : uint8_t { kRandom, kRepeated, kNaN, kWide };
const char* keys_name(Keys kind) {
  switch (kind) {
    case Keys::kRandom:
      return "random";
    case Keys::kRepeated:
      return "repeated";
    case Keys::kNaN:
      return "some NaN";
    default:
      return "wide scales";
  }
}

// Index keys of all visible rows; everything else stays NaN.
void fill_keys(Random& random, const TestStep& step, Cache& cache, Keys kind) {
  const SourceLayout& layout = cache.host.layout;
  for (int32_t s = 0; s < step.host.sequences; ++s) {
    const int64_t rows = (int64_t{step.host.seq_start[s]} + step.host.seq_count[s]) / layout.ratio;
    for (int64_t j = 0; j < rows; ++j) {
      std::byte* block =
          cache.host.blocks +
          step.host.block_table[int64_t{s} * step.host.max_blocks + j / layout.rows] * cache.host.block_bytes;
      uint8_t* codes = layout.key_codes_at(block, j % layout.rows);
      e8m0* scales = layout.key_scales_at(block, j % layout.rows);
      Random same(static_cast<uint64_t>(j % 7 + 99));
      Random& from = kind == Keys::kRepeated ? same : random;
      for (int i = 0; i < layout.key_dim / 2; ++i) codes[i] = static_cast<uint8_t>(from.next() >> 32);
      const int64_t spread = kind == Keys::kWide ? 9 : 3;
      for (int i = 0; i < layout.key_dim / 32; ++i) {
        scales[i].bits = static_cast<uint8_t>(126 - spread / 2 + from.below(spread));
        if (kind == Keys::kNaN && random.below(200) == 0) scales[i].bits = 255;
      }
    }
  }
  cache.bytes.sync();
}

// ---- index_select ---------------------------------------------------------------------------------------------------
struct IndexShape {
  int32_t heads, key_dim, rope_dim, topk, candidate_blocks, block_size, ratio;
  int32_t dim = 96, rank = 64;
};

using Scores = std::vector<uint16_t>;
Tap collect(Scores& out) {
  return [&out](std::string_view name, int, const TensorView& value) {
    if (name != "index_scores") return;
    const auto* at = static_cast<const uint16_t*>(value.data);
    for (int64_t i = 0; i < value.shape[0]; ++i) out.push_back(at[i]);
  };
}

// NaNs are one NaN here: their payload is not specified.
void plain_nans(Scores& scores) {
  for (uint16_t& v : scores) {
    if ((v & 0x7FFF) > 0x7F80) v = 0x7FC0;
  }
}

void check_select(Harness& h, const IndexShape& shape, const std::vector<TestSequence>& sequences, Keys kind,
                  bool no_weights, const char* label) {
  if (!h.wants("index_select")) return;
  Random random(static_cast<uint64_t>(shape.heads * 131 + shape.ratio * 7 + static_cast<int>(kind)));
  TestStep step = make_step(random, sequences, 100);
  const int64_t rows = step.host.rows;
  Cache cache(step.pool_blocks, shape.ratio, 64, shape.key_dim);
  fill_keys(random, step, cache, kind);
  const Rope rope(shape.rope_dim);
  Mirror<bf16> x(grid_values(random, rows * shape.dim, no_weights ? 0.0f : 0.125f));
  Mirror<bf16> qr(grid_values(random, rows * shape.rank, 0.125f));
  const GridWeight wq_b(random, int64_t{shape.heads} * shape.key_dim, shape.rank);
  const GridWeight proj(random, shape.heads, shape.dim);
  Mirror<int32_t> selected(static_cast<size_t>(rows * shape.topk));
  Mirror<int32_t> candidates(static_cast<size_t>(rows * shape.candidate_blocks));
  IndexSelectArgs host{.heads = shape.heads,
                       .key_dim = shape.key_dim,
                       .topk = shape.topk,
                       .candidate_blocks = shape.candidate_blocks,
                       .candidate_block_size = shape.block_size,
                       .mode = IndexMode::kPlain,
                       .x = x.host.data(),
                       .qr = qr.host.data(),
                       .wq_b = wq_b.host,
                       .weights_proj = proj.host,
                       .rope = rope.host,
                       .cache = cache.host,
                       .candidates = candidates.host.data(),
                       .selected = selected.host.data()};
  IndexSelectArgs device = host;
  device.x = x.device.data();
  device.qr = qr.device.data();
  device.wq_b = wq_b.device;
  device.weights_proj = proj.device;
  device.rope = rope.device;
  device.cache = cache.device;
  device.candidates = candidates.device.data();
  device.selected = selected.device.data();
  for (const IndexMode mode : {IndexMode::kPlain, IndexMode::kCandidateSource, IndexMode::kFiltered}) {
    const char* const name = mode == IndexMode::kPlain             ? " plain"
                             : mode == IndexMode::kCandidateSource ? " source"
                                                                   : " filtered";
    host.mode = device.mode = mode;
    selected.poison();
    if (mode == IndexMode::kFiltered) candidates.sync();
    const std::string text = step.shape + " " + label + " ratio " + std::to_string(shape.ratio) + " heads " +
                             std::to_string(shape.heads) + " keys " + keys_name(kind) + name;
    Scores want, got;
    h.cpu().tap = collect(want);
    h.cuda().tap = collect(got);
    cpu::index_select(h.cpu(), step.host, host);
    cuda::index_select(h.cuda(), step.device, device);
    h.cpu().tap = {};
    h.cuda().tap = {};
    plain_nans(want);
    plain_nans(got);
    if (got.size() == want.size()) {
      h.report("index_select scores", text, compare_bits(got, want));
    } else {
      h.expect("index_select scores", text, false,
               std::to_string(got.size()) + " scores, expected " + std::to_string(want.size()));
    }
    h.report("index_select selected", text, compare_bits(selected));
    if (mode == IndexMode::kCandidateSource) h.report("index_select candidates", text, compare_bits(candidates));
    selected.device.poison();
    cuda::index_select(h.cuda(), step.device, device);  // without the tap
    h.report("index_select again", text, compare_bits(selected));
  }
}

// ---- the selections alone -------------------------------------------------------------------------------------------
enum class Pattern : uint8_t { kGaussian, kAnyBits, kFew, kEqual, kInfinite };

bf16 pattern_value(Random& random, Pattern pattern) {
  switch (pattern) {
    case Pattern::kGaussian:
      return to_bf16(random.gaussian());
    case Pattern::kAnyBits:
      return bf16{static_cast<uint16_t>(random.next() >> 30)};
    case Pattern::kFew:
      return to_bf16(static_cast<float>(random.below(5) - 2) * 0.5f);
    case Pattern::kEqual:
      return bf16{static_cast<uint16_t>(random.below(2) == 0 ? 0x8000 : 0)};
    default:
      return bf16{static_cast<uint16_t>(random.below(9) == 0 ? 0x3F80 + random.below(4) : 0xFF80)};
  }
}

void check_topk(Harness& h, int32_t longest, int32_t k, int32_t block_size, Pattern pattern) {
  if (!h.wants("topk")) return;
  Random random(static_cast<uint64_t>(longest * 3 + k));
  // ratio 2, so that a row may see nothing.
  std::vector<int32_t> position = {0, 2 * longest - 1, 2, 2 * (longest / 2) + 1, 2 * longest - 2};
  const auto rows = static_cast<int64_t>(position.size());
  const int64_t stride = (longest + 7) / 8 * 8;
  std::vector<bf16> values(static_cast<size_t>(rows * stride), bf16{0x7F80});  // infinite where nothing may be read
  std::vector<int32_t> selected(static_cast<size_t>(rows * k)), blocks(selected.size());
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t n = (position[static_cast<size_t>(t)] + 1) / 2;
    bf16* row = values.data() + t * stride;
    for (int64_t i = 0; i < n; ++i) row[i] = pattern_value(random, pattern);
    cpu::select_topk(row, nullptr, n, k, selected.data() + t * k);
    cpu::select_candidates(row, n, block_size, k, blocks.data() + t * k);
  }
  const DeviceArray<int32_t> at(position);
  const DeviceArray<bf16> scores(values);
  const DeviceArray<int32_t> got(selected.size()), got_blocks(selected.size());
  cuda::IndexRows part;
  part.step.rows = part.count = static_cast<int32_t>(rows);
  part.step.position = at.data();
  part.cache.layout.ratio = 2;
  part.scores = scores.data();
  part.stride = stride;
  cuda::select_positions(h.cuda(), part, k, got.data());
  cuda::select_blocks(h.cuda(), part, block_size, k, got_blocks.data());
  const std::string text = "n=" + std::to_string(longest) + " k=" + std::to_string(k) + " blocks of " +
                           std::to_string(block_size) + " pattern " + std::to_string(static_cast<int>(pattern));
  h.report("topk positions", text, compare_bits(got.download(), selected));
  h.report("topk blocks", text, compare_bits(got_blocks.download(), blocks));
  h.expect("topk guards", text, got.guards_whole() && got_blocks.guards_whole());
}

// ---- compress -------------------------------------------------------------------------------------------------------
void check_compress(Harness& h, int32_t ratio, int32_t dim, int32_t head_dim, int32_t key_dim, int32_t rope_dim,
                    const std::vector<TestSequence>& sequences) {
  if (!h.wants("compress")) return;
  Random random(static_cast<uint64_t>(ratio * 1000 + dim));
  TestStep step = make_step(random, sequences, 100);
  const int64_t rows = step.host.rows, width = 2 * int64_t{head_dim};
  Cache cache(step.pool_blocks, ratio, head_dim, key_dim);
  const Rope rope(rope_dim);
  Mirror<bf16> x(grid_values(random, rows * dim, 0.125f));
  const GridWeight wkv(random, head_dim, dim), wgate(random, head_dim, dim), wk(random, key_dim, head_dim);
  Mirror<bf16> norm(random_bf16(random, 1, head_dim)), k_norm(random_bf16(random, 1, key_dim));
  Mirror<float> pending(static_cast<size_t>(step.slots * width));
  for (int32_t s = 0; s < step.host.sequences; ++s) {
    if (step.host.seq_start[s] % 2 == 0) continue;  // stays NaN
    for (int64_t i = 0; i < width; ++i) {
      pending.host[static_cast<size_t>(step.host.seq_slot[s] * width + i)] = random.gaussian();
    }
  }
  pending.sync();
  Mirror<float> step_pending(static_cast<size_t>(rows * width));
  CompressArgs host{.eps = 1e-6f,
                    .x = x.host.data(),
                    .wkv = wkv.host,
                    .wgate = wgate.host,
                    .norm = norm.host.data(),
                    .wk = wk.host,
                    .k_norm = k_norm.host.data(),
                    .rope = rope.host,
                    .pending = pending.host.data(),
                    .pending_stride = width,
                    .step_pending = step_pending.host.data(),
                    .cache = cache.host};
  CompressArgs device = host;
  device.x = x.device.data();
  device.wkv = wkv.device;
  device.wgate = wgate.device;
  device.norm = norm.device.data();
  device.wk = wk.device;
  device.k_norm = k_norm.device.data();
  device.rope = rope.device;
  device.pending = pending.device.data();
  device.step_pending = step_pending.device.data();
  device.cache = cache.device;
  if (ratio == 1) {
    host.wgate.data = device.wgate.data = nullptr;
    host.pending = device.pending = nullptr;
    host.step_pending = device.step_pending = nullptr;
  }
  std::vector<bf16> want, got;
  const auto keep = [](std::vector<bf16>& out) {
    return [&out](std::string_view, int, const TensorView& v) {
      const auto* at = static_cast<const bf16*>(v.data);
      out.assign(at, at + v.shape[0] * v.shape[1]);
    };
  };
  h.cpu().tap = keep(want);
  h.cuda().tap = keep(got);
  cpu::compress(h.cpu(), step.host, host);
  cuda::compress(h.cuda(), step.device, device);
  h.cpu().tap = {};
  h.cuda().tap = {};
  const std::string text = step.shape + " ratio " + std::to_string(ratio) + " [" + std::to_string(head_dim) + ", " +
                           std::to_string(dim) + "]";
  if (ratio == 2) h.report("compress a, g", text, compare_bits(step_pending));
  const auto share = [](size_t n) { return static_cast<int64_t>(n / 2000 + 1); };
  if (got.size() == want.size()) {
    h.report("compress latents", text, compare_bits(got, want, share(want.size())));
  } else {
    h.expect("compress latents", text, false, "another number of them");
  }
  // The product with wk adds in another order: a rounding of it may move a code.
  const size_t written = want.size() / 2 + want.size() / static_cast<size_t>(head_dim) * static_cast<size_t>(key_dim);
  h.report("compress cache", text, compare_bits(cache.bytes, ratio == 1 || rows > 0 ? share(written) + 2 : 0));
}

// ---- timing ---------------------------------------------------------------------------------------------------------
__global__ void scales_kernel(SourceCache cache, int64_t blocks) {
  const int64_t plane = int64_t{cache.layout.rows} * (cache.layout.key_dim / 32);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < blocks * plane;
       i += int64_t{gridDim.x} * blockDim.x) {
    std::byte* at = cache.blocks + i / plane * cache.block_bytes + cache.layout.key_scales + i % plane;
    *at = static_cast<std::byte>(125 + hash(static_cast<uint64_t>(i), 5) % 3);
  }
}

void time_select(Harness& h, const char* label, int32_t sequences, int32_t rows_each, int32_t context, int32_t ratio) {
  if (!h.timing() || !h.wants(label)) return;
  constexpr int32_t kHeads = 32, kKeyDim = 128, kDim = 5120, kRank = 1536, kTopk = 512, kKeep = 2048;
  Random random(5);
  std::vector<TestSequence> all;
  for (int32_t s = 0; s < sequences; ++s) all.push_back({s, context - rows_each, rows_each, 0});
  TestStep step = make_step(random, all, 100);
  const int64_t rows = step.host.rows, longest = context / ratio;
  const CacheLayout layout = make_cache_layout({ratio}, 512, kKeyDim);
  const DeviceArray<std::byte> bytes(static_cast<size_t>(step.pool_blocks * layout.block_bytes));
  const SourceCache cache{.blocks = bytes.data(), .block_bytes = layout.block_bytes, .layout = layout.sources[0]};
  fill(Fill::kBytes, bytes.data(), static_cast<int64_t>(bytes.bytes()));
  scales_kernel<<<1024, 256>>>(cache, step.pool_blocks);
  const Rope rope(64);
  const DeviceArray<bf16> x(static_cast<size_t>(rows * kDim)), qr(static_cast<size_t>(rows * kRank));
  fill(Fill::kBF16, x.data(), rows * kDim);
  fill(Fill::kBF16, qr.data(), rows * kRank, 1, 2);
  const DeviceWeight wq_b(WeightKind::kE4M3, kHeads * kKeyDim, kRank, 1), proj(WeightKind::kBF16, kHeads, kDim, 1);
  const DeviceArray<int32_t> selected(static_cast<size_t>(rows * kTopk)), again(selected.size());
  const DeviceArray<int32_t> candidates(static_cast<size_t>(rows * kKeep));
  IndexSelectArgs args{.heads = kHeads,
                       .key_dim = kKeyDim,
                       .topk = kTopk,
                       .candidate_blocks = kKeep,
                       .candidate_block_size = 8,
                       .mode = IndexMode::kCandidateSource,
                       .x = x.data(),
                       .qr = qr.data(),
                       .wq_b = wq_b.weight,
                       .weights_proj = proj.weight,
                       .rope = rope.device,
                       .cache = cache,
                       .candidates = candidates.data(),
                       .selected = selected.data()};
  const std::string text = step.shape + " keys " + std::to_string(longest);
  cuda::index_select(h.cuda(), step.device, args);

  // The same rows three at a time, through other kernels and blocks: the same bits.
  const auto want = selected.download();
  StepView few = step.device;
  few.rows = 3;
  const int64_t from = std::max<int64_t>(rows / 2 - 1, 0);
  few.position += from;
  few.seq_of_row += from;
  few.sequences = sequences == 1 ? 3 : 1;
  args.x += from * kDim;
  args.qr += from * kRank;
  args.candidates = nullptr;
  args.selected = again.data();
  args.mode = IndexMode::kPlain;
  cuda::index_select(h.cuda(), few, args);
  auto got = again.download();
  got.resize(3 * kTopk);
  h.report("invariance", text,
           compare_bits(got, std::vector<int32_t>(want.begin() + from * kTopk, want.begin() + (from + 3) * kTopk)));
  args.x = x.data();
  args.qr = qr.data();
  args.candidates = candidates.data();
  args.selected = selected.data();

  const DeviceArray<bf16> iq(static_cast<size_t>(rows * kHeads * kKeyDim)), w(static_cast<size_t>(rows * kHeads));
  fill(Fill::kBF16, iq.data(), rows * kHeads * kKeyDim, 1, 3);
  fill(Fill::kBF16, w.data(), rows * kHeads, 1, 4);
  cuda::rope_fp4_rows(h.cuda(), rope.device, step.device.position, rows, kHeads, kKeyDim, iq.data(), nullptr, nullptr,
                      iq.data());
  cuda::IndexRows part;
  part.step = step.device;
  part.cache = cache;
  part.heads = kHeads;
  part.key_dim = kKeyDim;
  part.iq = iq.data();
  part.w = w.data();
  part.stride = longest;
  const int64_t at_once = std::min<int64_t>(rows, (int64_t{128} << 20) / (longest * 2));
  const DeviceArray<bf16> scores(static_cast<size_t>(at_once * longest));
  part.scores = scores.data();
  part.count = static_cast<int32_t>(at_once);
  const double pairs = static_cast<double>(rows) * static_cast<double>(longest);
  const double product = 2.0 * kHeads * kKeyDim;
  const double key_bytes = static_cast<double>(sequences) * static_cast<double>(longest) * 68;
  const auto each = [&](auto&& body) {
    for (int64_t first = 0; first < rows; first += at_once) {
      part.first = static_cast<int32_t>(first);
      part.count = static_cast<int32_t>(std::min(at_once, rows - first));
      body();
    }
  };
  h.time(std::string(label) + " scores", text, {.bytes = key_bytes, .flops = pairs * product},
         [&](int) { each([&] { cuda::index_scores(h.cuda(), part); }); });
  h.time(std::string(label) + " positions", text, {.bytes = pairs * 2},
         [&](int) { each([&] { cuda::select_positions(h.cuda(), part, kTopk, selected.data()); }); });
  if (ratio == 1) {
    h.time(std::string(label) + " blocks", text, {.bytes = pairs * 2},
           [&](int) { each([&] { cuda::select_blocks(h.cuda(), part, 8, kKeep, candidates.data()); }); });
  }
  args.mode = ratio == 1 ? IndexMode::kCandidateSource : IndexMode::kPlain;
  const double projections = 2.0 * static_cast<double>(rows) * (kHeads * kKeyDim * kRank + kHeads * kDim);
  h.time(std::string(label) + " stage", text, {.bytes = key_bytes, .flops = pairs * product + projections},
         [&](int) { cuda::index_select(h.cuda(), step.device, args); });
  if (ratio == 1) {
    args.mode = IndexMode::kFiltered;
    const double scored = static_cast<double>(rows) * std::min<double>(kKeep * 8, static_cast<double>(longest));
    part.candidates = candidates.data();
    part.candidate_blocks = kKeep;
    part.block_size = 8;
    part.stride = std::min<int64_t>(longest, kKeep * 8);
    part.first = 0;
    part.count = static_cast<int32_t>(std::min(rows, at_once * longest / part.stride));
    const double here = scored * part.count / static_cast<double>(rows);
    h.time(std::string(label) + " scores filtered", text,
           {.bytes = std::min(key_bytes, here * 68), .flops = here * product},
           [&](int) { cuda::index_scores(h.cuda(), part); });
    h.time(std::string(label) + " positions filtered", text, {.bytes = here * 2},
           [&](int) { cuda::select_positions(h.cuda(), part, kTopk, selected.data()); });
    h.time(std::string(label) + " stage filtered", text,
           {.bytes = std::min(key_bytes, scored * 68), .flops = scored * product + projections},
           [&](int) { cuda::index_select(h.cuda(), step.device, args); });
  }
}

void time_compress(Harness& h, int32_t ratio) {
  if (!h.timing() || !h.wants("compress")) return;
  constexpr int64_t kDim = 5120;
  Random random(5);
  TestStep step = make_step(random, {{0, 131072 - 4096, 4096, 0}}, 100);
  const int64_t rows = step.host.rows;
  const CacheLayout layout = make_cache_layout({ratio}, 512, 128);
  const DeviceArray<std::byte> bytes(static_cast<size_t>(step.pool_blocks * layout.block_bytes));
  const Rope rope(64);
  const DeviceArray<bf16> x(static_cast<size_t>(rows * kDim)), norm(size_t{512}), k_norm(size_t{128});
  fill(Fill::kBF16, x.data(), rows * kDim);
  fill(Fill::kBF16, norm.data(), 512);
  fill(Fill::kBF16, k_norm.data(), 128);
  const DeviceWeight wkv(WeightKind::kBF16, 512, kDim, 1), wgate(WeightKind::kBF16, 512, kDim, 1, 2),
      wk(WeightKind::kBF16, 128, 512, 1);
  const DeviceArray<float> step_pending(static_cast<size_t>(rows * 1024));
  const CompressArgs args{
      .eps = 1e-6f,
      .x = x.data(),
      .wkv = wkv.weight,
      .wgate = ratio == 2 ? wgate.weight : LinearWeight{},
      .norm = norm.data(),
      .wk = wk.weight,
      .k_norm = k_norm.data(),
      .rope = rope.device,
      .pending = nullptr,
      .pending_stride = 1024,
      .step_pending = step_pending.data(),
      .cache = {.blocks = bytes.data(), .block_bytes = layout.block_bytes, .layout = layout.sources[0]}};
  h.time("compress stage", step.shape + " ratio " + std::to_string(ratio),
         {.bytes = static_cast<double>(rows * kDim * 2),
          .flops = 2.0 * static_cast<double>(rows * (kDim * 512 * ratio + 512 * 128))},
         [&](int) { cuda::compress(h.cuda(), step.device, args); });
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) {
  using namespace mdi::check;
  Harness h("index", argc, argv);
  using Sequences = std::vector<TestSequence>;
  const bool small = h.small();
  const Sequences mixed = {{0, small ? 300 : 3001, 37, 0}, {3, 0, 5, 0}, {1, 131, 1, 0}, {2, 64, 9, 0}};
  const Sequences long_one = {{0, 6000, 18, 0}};
  const Sequences decode = {{2, 700, 1, 0},  {0, 0, 1, 0},   {1, 1, 1, 0},
                            {5, 1500, 2, 0}, {4, 129, 1, 0}, {3, 4000, 2, 0}};
  const IndexShape released2{32, 128, 64, 512, 64, 8, 2}, released1{32, 128, 64, 512, 64, 8, 1};
  const IndexShape tiny2{8, 64, 32, 16, 6, 4, 2}, tiny1{8, 64, 32, 16, 6, 8, 1}, odd{20, 64, 32, 24, 9, 3, 1};
  if (small) {  // each kernel once: tiles of several queries, of one query, the plain one
    check_select(h, released2, mixed, Keys::kRandom, false, "mixed");
    check_select(h, released1, {{0, 1500, 2, 0}, {1, 40, 1, 0}}, Keys::kRandom, false, "decode");
    check_select(h, tiny2, mixed, Keys::kRandom, false, "mixed");
    check_topk(h, 5003, 512, 8, Pattern::kGaussian);  // listed
    check_topk(h, 5003, 512, 8, Pattern::kEqual);     // counted whole
    check_topk(h, 5003, 2048, 3, Pattern::kInfinite);
    check_topk(h, 40000, 16, 2, Pattern::kFew);  // more blocks than are kept
    for (const int32_t ratio : {1, 2}) {
      check_compress(h, ratio, 96, 64, 64, 32, mixed);
      check_compress(h, ratio, 256, 512, 128, 64, mixed);
    }
    return h.finish();
  }
  for (const IndexShape& shape : {released2, released1, tiny2, tiny1, odd}) {
    check_select(h, shape, mixed, Keys::kRandom, false, "mixed");
    check_select(h, shape, decode, Keys::kRandom, false, "decode");
    check_select(h, shape, {}, Keys::kRandom, false, "empty");
    check_select(h, shape, mixed, Keys::kRepeated, false, "mixed");
    check_select(h, shape, mixed, Keys::kNaN, false, "mixed");
    check_select(h, shape, mixed, Keys::kWide, false, "mixed");
    check_select(h, shape, decode, Keys::kNaN, false, "decode");
    check_select(h, shape, mixed, Keys::kRandom, true, "all zero");
  }
  check_select(h, released1, long_one, Keys::kRandom, false, "long");
  check_select(h, released2, long_one, Keys::kRepeated, false, "long");
  for (const Pattern pattern :
       {Pattern::kGaussian, Pattern::kAnyBits, Pattern::kFew, Pattern::kEqual, Pattern::kInfinite}) {
    for (const int32_t k : {1, 16, 512, 2048}) {
      check_topk(h, 5003, k, 8, pattern);
      check_topk(h, 1, k, 8, pattern);
      check_topk(h, 513, k, 3, pattern);
      check_topk(h, 40000, k, 8, pattern);
    }
  }
  for (const int32_t ratio : {1, 2}) {
    check_compress(h, ratio, 96, 64, 64, 32, mixed);
    check_compress(h, ratio, 96, 64, 64, 32, {});
    check_compress(h, ratio, 256, 512, 128, 64, mixed);
    check_compress(h, ratio, 256, 512, 128, 64, decode);
  }
  time_select(h, "prefill", 1, 4096, 131072, 2);
  time_select(h, "prefill", 1, 4096, 131072, 1);
  time_select(h, "short", 1, 4096, 4096, 2);
  time_select(h, "decode", 64, 1, 131072, 2);
  time_select(h, "decode", 64, 1, 131072, 1);
  time_select(h, "verify", 32, 6, 131072, 1);
  time_compress(h, 1);
  time_compress(h, 2);
  return h.finish();
}
