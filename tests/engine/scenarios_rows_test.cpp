// faults: "The writer of a cache row and its reader disagree on the layout." Each format of the cache (window rows in
// e4m3, compressed rows and index keys in e2m1) is written by its operation and read by the one that uses it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/dtype.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/quant.h"

namespace mdi {
namespace {

constexpr int32_t kDim = 64, kKeyDim = 32, kWindow = 16;
constexpr int32_t kTokens = 300;  // three blocks, the last one in part
constexpr float kEps = 1e-6f;

std::vector<bf16> identity(int32_t n, int32_t k) {
  std::vector<bf16> w(static_cast<size_t>(n) * k);
  for (int32_t i = 0; i < n; ++i) w[static_cast<size_t>(i) * k + i] = to_bf16(1.0f);
  return w;
}

LinearWeight weight(const std::vector<bf16>& w, int64_t n, int64_t k) {
  return {.kind = WeightKind::kBF16, .data = w.data(), .scale = nullptr, .n = n, .k = k};
}

// One sequence. Products with identities leave a row to be what its x is; there is no rotation.
struct Sequence {
  std::unique_ptr<CpuContext> context = make_cpu_context(1);
  std::vector<bf16> x, wide = identity(kDim, kDim), narrow = identity(kKeyDim, kDim);
  std::vector<bf16> ones = std::vector<bf16>(kDim, to_bf16(1.0f));
  std::vector<int32_t> position = std::vector<int32_t>(kTokens), zeros = std::vector<int32_t>(kTokens, 0);
  std::vector<int32_t> table = {2, 0, 1};
  int32_t start = 0, row = 0, count = kTokens, floor = 0, slot = 1;

  Sequence() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(kTokens) * kDim);
    for (bf16& v : x) v = to_bf16(normal(random));
    std::iota(position.begin(), position.end(), 0);
  }
  const Ops& ops() const { return *context->ops; }

  // Tokens [from, from + rows), new from `from` on.
  StepView step(int32_t from, int32_t rows) {
    start = from;
    count = rows;
    StepView view;
    view.rows = rows;
    view.sequences = 1;
    view.position = position.data() + from;
    view.seq_of_row = zeros.data();
    view.seq_slot = &slot;
    view.seq_start = &start;
    view.seq_row = &row;
    view.seq_count = &count;
    view.seq_floor = &floor;
    view.block_table = table.data();
    view.max_blocks = 3;
    return view;
  }
  std::vector<bf16> normalised(int32_t p) const {
    std::vector<bf16> out(kDim);
    cpu::rms_norm(x.data() + static_cast<size_t>(p) * kDim, ones.data(), kDim, kEps, out.data());
    return out;
  }
};

std::vector<float> widened(const std::vector<bf16>& v) {
  std::vector<float> out;
  for (const bf16 b : v) out.push_back(to_float(b));
  return out;
}

std::vector<float> window_values(const std::vector<bf16>& row) {
  std::vector<e4m3> codes(kDim);
  std::vector<e8m0> scales(kDim / 32);
  std::vector<float> out(kDim);
  cpu::act_quant(row.data(), kDim, codes.data(), scales.data());
  cpu::act_dequant(codes.data(), scales.data(), kDim, out.data());
  return out;
}

std::vector<float> compressed_values(const std::vector<bf16>& row) {
  std::vector<uint8_t> codes(kDim / 2);
  std::vector<e4m3> scales(kDim / 16);
  std::vector<float> out(kDim);
  cpu::fp4_quant_e4m3(row.data(), kDim, codes.data(), scales.data());
  cpu::fp4_dequant_e4m3(codes.data(), scales.data(), kDim, out.data());
  return out;
}

// A step's own rows first, then the ring's: what the window of the next tokens holds. A query that is a row's own
// direction, at a scale that leaves the others nothing, is answered by that row.
TEST(CacheRows, AWindowRowIsReadAsItWasWritten) {
  Sequence s;
  const WindowRow layout{kDim};
  constexpr int32_t kNew = 20;  // the ring has gone round once
  std::vector<std::byte> rows(static_cast<size_t>(kNew * layout.bytes()));
  std::vector<std::byte> rings(static_cast<size_t>(2 * kWindow * layout.bytes()));
  s.ops().window_rows(*s.context, s.step(0, kNew),
                      {.eps = kEps,
                       .x = s.x.data(),
                       .wkv = weight(s.wide, kDim, kDim),
                       .norm = s.ones.data(),
                       .rope = {},
                       .rows = rows.data()});
  const float sink = -1e30f;
  std::vector<bf16> o(kDim);
  SparseAttentionArgs args;
  args.heads = 1;
  args.head_dim = kDim;
  args.scale = 100;
  args.sink = &sink;
  args.window_rows = rows.data();
  args.ring = {rings.data(), kWindow * layout.bytes(), kWindow, layout};
  args.o = o.data();
  const auto answer = [&](const StepView& step, int32_t p) {
    const std::vector<bf16> q = s.normalised(p);
    args.q = q.data();
    s.ops().sparse_attention(*s.context, step, args);
    return widened(o);
  };

  StepView last = s.step(0, kNew);  // the query of the last row alone
  last.rows = 1;
  last.position = s.position.data() + kNew - 1;
  for (int32_t p = kNew - kWindow; p < kNew; ++p) {
    EXPECT_EQ(answer(last, p), window_values(s.normalised(p))) << "own row " << p;
  }

  const int32_t accepted = kNew;
  s.ops().commit_ring(*s.context, s.step(0, kNew), {&accepted, rows.data(), args.ring});
  std::fill(rows.begin(), rows.end(), std::byte{0});
  const StepView next = s.step(kNew, 1);
  for (int32_t p = kNew + 1 - kWindow; p < kNew; ++p) {
    EXPECT_EQ(answer(next, p), window_values(s.normalised(p))) << "ring row " << p;
  }
}

// Both planes of a source, at ratio 1, in blocks that are not in order.
class CompressedRows : public ::testing::Test {
 protected:
  CompressedRows() {
    const CacheLayout layout = make_cache_layout({2, 1}, kDim, kKeyDim);  // another source's planes come first
    pool.resize(static_cast<size_t>(3 * layout.block_bytes));
    cache = {pool.data(), layout.block_bytes, layout.sources[1]};
    CompressArgs args;
    args.eps = kEps;
    args.x = s.x.data();
    args.wkv = weight(s.wide, kDim, kDim);
    args.norm = s.ones.data();
    args.wk = weight(s.narrow, kKeyDim, kDim);
    args.k_norm = s.ones.data();
    args.cache = cache;
    s.ops().compress(*s.context, s.step(0, kTokens), args);
  }

  Sequence s;
  std::vector<std::byte> pool;
  SourceCache cache;
};

TEST_F(CompressedRows, AreReadAsTheyWereWritten) {
  const float sink = -1e30f;
  const std::vector<bf16> q(kDim);
  std::vector<bf16> o(kDim);
  std::vector<std::byte> none(static_cast<size_t>(kWindow * WindowRow{kDim}.bytes()));
  for (int32_t p = 0; p < kTokens; ++p) {
    SparseAttentionArgs args;
    args.heads = 1;
    args.head_dim = kDim;
    args.topk = 1;
    args.scale = 1;
    args.q = q.data();
    args.sink = &sink;
    args.window_rows = none.data();
    args.ring = {none.data(), 0, kWindow, {kDim}};
    args.selected = &p;
    args.cache = cache;
    args.o = o.data();
    s.floor = kTokens;  // no window
    s.ops().sparse_attention(*s.context, s.step(kTokens - 1, 1), args);
    ASSERT_EQ(widened(o), compressed_values(s.normalised(p))) << p;
  }
}

// Keys have one length, so a query that is a key has its best score with that one.
TEST_F(CompressedRows, KeysAreFoundWhereTheyWereWritten) {
  const std::vector<bf16> one(1, to_bf16(1.0f)), query_weight = identity(kKeyDim, kKeyDim);
  for (int32_t p = 0; p < kTokens; ++p) {
    std::vector<bf16> key(kKeyDim);
    cpu::rms_norm(s.normalised(p).data(), s.ones.data(), kKeyDim, kEps, key.data());
    int32_t selected = -1;
    IndexSelectArgs args;
    args.heads = 1;
    args.key_dim = kKeyDim;
    args.topk = 1;
    args.x = one.data();
    args.qr = key.data();
    args.wq_b = weight(query_weight, kKeyDim, kKeyDim);
    args.weights_proj = weight(one, 1, 1);
    args.cache = cache;
    args.selected = &selected;
    s.ops().index_select(*s.context, s.step(kTokens - 1, 1), args);
    ASSERT_EQ(selected, p);
  }
}

}  // namespace
}  // namespace mdi
