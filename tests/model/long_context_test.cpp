// Positions near the model's limit of 1,048,576, with cache offsets past 2^31 bytes: the state of a long sequence is
// made up (prefilling it would take hours), and a step on top of it is compared with the same step on another placement
// of the blocks, and its selections with a sort of its own scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tiny_model.h"

namespace mdi {
namespace {

using testing::iota_blocks;
using testing::Runner;
using testing::some_tokens;
using testing::tiny_model;

constexpr int32_t kStart = 1048576 - 6;
constexpr int64_t kBlocks = 1048576 / kBlockTokens;

uint32_t hash(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  return static_cast<uint32_t>(x >> 32);
}

// Codes of any value under scales near one, a function of (source, position) alone.
void fill_cache(Runner& r) {
  for (size_t k = 0; k < r.state.cache.sources.size(); ++k) {
    const SourceCache cache = r.state.source(static_cast<int>(k));
    const SourceLayout& l = cache.layout;
    for (int64_t j = 0; j < kStart / l.ratio; ++j) {
      std::byte* block = cache.blocks + r.blocks[0][static_cast<size_t>(j / l.rows)] * cache.block_bytes;
      const int64_t row = j % l.rows;
      uint64_t x = (static_cast<uint64_t>(k) << 40) + static_cast<uint64_t>(j) * 64;
      for (int i = 0; i < l.key_dim / 2; ++i) l.key_codes_at(block, row)[i] = static_cast<uint8_t>(hash(++x));
      for (int i = 0; i < l.key_dim / 32; ++i) l.key_scales_at(block, row)[i] = {126};
      for (int i = 0; i < l.head_dim / 2; ++i) l.kv_codes_at(block, row)[i] = static_cast<uint8_t>(hash(++x));
      for (int i = 0; i < l.head_dim / 16; ++i) l.kv_scales_at(block, row)[i] = {0x30};
    }
  }
  for (int layer = 0; layer < r.state.layers; ++layer) {
    const RingView ring = r.state.ring(layer);
    for (int32_t slot = 0; slot < ring.window; ++slot) {
      std::byte* row = ring.base + slot * ring.row.bytes();
      for (int i = 0; i < ring.row.head_dim; ++i) {
        WindowRow::codes(row)[i] = {
            static_cast<uint8_t>(hash(static_cast<uint64_t>(layer * 100000 + slot * 100 + i)) & 0xB7u)};
      }
      for (int i = 0; i < ring.row.head_dim / 32; ++i) ring.row.scales(row)[i] = {124};
    }
  }
}

struct Seen {
  std::map<int, std::vector<std::vector<bf16>>> scores;  // by layer, a row a query
  std::map<int, std::vector<int32_t>> topk, candidates;
};

std::vector<float> run_at_the_limit(int32_t first_block, Seen& seen) {
  Runner r(tiny_model(), 1, 128, 6);
  r.blocks[0] = iota_blocks(first_block, kBlocks);
  r.state = make_state(*r.context, r.model, 1, first_block + kBlocks);
  r.buffers = StepBuffers(*r.context, r.model, 6, 6, 1, static_cast<int32_t>(kBlocks));
  fill_cache(r);
  r.context->tap = [&](std::string_view name, int layer, const TensorView& v) {
    const auto ints = [&v] { return std::vector<int32_t>(v.as<int32_t>(), v.as<int32_t>() + v.elements()); };
    if (name == "index_scores") seen.scores[layer].emplace_back(v.as<bf16>(), v.as<bf16>() + v.elements());
    if (name == "topk") seen.topk[layer] = ints();
    if (name == "candidates") seen.candidates[layer] = ints();
  };
  return r.run({{0, kStart, some_tokens(6, 5)}});
}

// The positions of the k largest scores, the lower position among equals, ascending.
std::vector<int32_t> best(const std::vector<bf16>& scores, size_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return to_float(scores[static_cast<size_t>(a)]) > to_float(scores[static_cast<size_t>(b)]);
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(LongContext, BlocksPastTwoGigabytesGiveTheSameBits) {
  Seen low, high;
  const auto near = run_at_the_limit(0, low);
  // The pool's last blocks lie past 2^31 bytes; memory that is never written costs nothing.
  const int64_t block_bytes = Runner(tiny_model(), 1, 128, 1).state.cache.block_bytes;
  const auto first = static_cast<int32_t>((int64_t{1} << 31) / block_bytes + 1);
  const auto far = run_at_the_limit(first, high);
  ASSERT_EQ(testing::first_difference(near, far, tiny_model().config().vocab_size), -1);
  EXPECT_EQ(low.topk, high.topk);
  for (float v : near) ASSERT_TRUE(std::isfinite(v));

  const ModelConfig& c = tiny_model().config();
  for (int layer : c.index_source_layers) {
    const bool filtered = layer > c.candidate_source_layer;
    const auto& rows = low.scores.at(layer);
    ASSERT_EQ(rows.size(), 6u);
    for (size_t t = 0; t < rows.size() && !filtered; ++t) {
      ASSERT_EQ(static_cast<int32_t>(rows[t].size()),
                (kStart + static_cast<int32_t>(t) + 1) / tiny_model().ratio(layer));
      const auto expected = best(rows[t], static_cast<size_t>(c.index_topk));
      const auto at = low.topk.at(layer).begin() + static_cast<int64_t>(t) * c.index_topk;
      EXPECT_EQ(std::vector<int32_t>(at, at + c.index_topk), expected) << "layer " << layer << " row " << t;
    }
  }
  // The newest block is a candidate of every query.
  const auto& candidates = low.candidates.at(c.candidate_source_layer);
  for (int t = 0; t < 6; ++t) {
    const auto at = candidates.begin() + t * c.candidate_topk_blocks;
    EXPECT_NE(std::find(at, at + c.candidate_topk_blocks, (kStart + t) / c.candidate_block_size),
              at + c.candidate_topk_blocks);
  }
}

TEST(LongContext, OneTokenPastTheLimitIsRefused) {
  Runner r(tiny_model(), 1, 128, 8);
  r.blocks[0] = iota_blocks(0, kBlocks + 1);
  r.state = make_state(*r.context, r.model, 1, kBlocks + 1);
  r.buffers = StepBuffers(*r.context, r.model, 8, 8, 1, static_cast<int32_t>(kBlocks + 1));
  EXPECT_THROW(r.run({{0, kStart, some_tokens(7, 5)}}), std::exception);
}

}  // namespace
}  // namespace mdi
