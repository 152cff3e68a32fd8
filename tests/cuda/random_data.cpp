#include "random_data.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace mdi::check {

uint64_t Random::next() {
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

float Random::gaussian() {
  const double r = std::sqrt(-2 * std::log(1 - uniform()));
  return static_cast<float>(r * std::cos(2 * std::numbers::pi * uniform()));
}

const char* rows_name(Rows kind) {
  switch (kind) {
    case Rows::kGaussian:
      return "gaussian";
    case Rows::kPositive:
      return "positive";
    case Rows::kHugeChannel:
      return "huge channel";
    case Rows::kDeadRows:
      return "dead rows";
    case Rows::kZeroBlocks:
      return "zero blocks";
  }
  return "?";
}

std::vector<float> random_floats(Random& random, int64_t rows, int64_t columns, Rows kind, float scale) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(rows * columns));
  const int64_t huge = columns > 0 ? random.below(columns) : 0;
  for (int64_t i = 0; i < rows; ++i) {
    const bool dead_row = kind == Rows::kDeadRows && random.below(3) == 0;
    bool zero_block = false;
    for (int64_t j = 0; j < columns; ++j) {
      if (j % 32 == 0) zero_block = kind == Rows::kZeroBlocks && random.below(2) == 0;
      float v = random.gaussian() * scale;
      if (kind == Rows::kPositive) v = std::fabs(v);
      if (kind == Rows::kHugeChannel && j == huge) v *= 1000;
      out.push_back(dead_row || zero_block ? 0.0f : v);
    }
  }
  return out;
}

std::vector<bf16> random_bf16(Random& random, int64_t rows, int64_t columns, Rows kind, float scale) {
  const std::vector<float> values = random_floats(random, rows, columns, kind, scale);
  std::vector<bf16> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](float v) { return to_bf16(v); });
  return out;
}

namespace {

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Scale bytes such that codes of RMS `code_rms` give values of about 1 / sqrt(k).
std::vector<e8m0> random_scales(Random& random, int64_t count, int64_t k, double code_rms) {
  const int middle = 127 - static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(k)) * code_rms)));
  std::vector<e8m0> out(static_cast<size_t>(count));
  for (e8m0& s : out) s.bits = static_cast<uint8_t>(middle - 1 + random.below(3));
  return out;
}

}  // namespace

TestWeight random_weight(Random& random, WeightKind kind, int64_t n, int64_t k) {
  TestWeight w;
  std::vector<uint8_t> data;
  if (kind == WeightKind::kE4M3 || kind == WeightKind::kE2M1) {
    const bool fp4 = kind == WeightKind::kE2M1;
    data.resize(static_cast<size_t>(fp4 ? n * k / 2 : n * k));
    for (uint8_t& b : data) {
      b = static_cast<uint8_t>(random.next() >> 40);
      if (!fp4) {  // gaussian codes: uniform ones would be tiny values for the most part
        const double v = random.gaussian() * 64;
        b = to_e4m3(static_cast<float>(v)).bits;
      }
    }
    const int64_t scales = (fp4 ? n : (n + 31) / 32) * ((k + 31) / 32);
    w.scale = Mirror<e8m0>(random_scales(random, scales, k, fp4 ? 3.0 : 64.0));
  } else {
    const auto values = random_floats(random, n, k, Rows::kGaussian, 1.0f / std::sqrt(static_cast<float>(k)));
    if (kind == WeightKind::kF32) {
      data = bytes_of(values);
    } else {
      std::vector<bf16> rounded(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), [](float v) { return to_bf16(v); });
      data = bytes_of(rounded);
    }
  }
  w.data = Mirror<uint8_t>(std::move(data));
  w.host = {.kind = kind, .data = w.data.host.data(), .scale = w.scale.host.data(), .n = n, .k = k};
  w.device = {.kind = kind, .data = w.data.device.data(), .scale = w.scale.device.data(), .n = n, .k = k};
  if (w.scale.host.empty()) w.host.scale = w.device.scale = nullptr;
  return w;
}

TestStep make_step(Random& random, const std::vector<TestSequence>& sequences, int32_t vocab, double dead_share) {
  TestStep s;
  std::vector<int32_t> token, position, seq_of_row, slot, start, row, count, floor, table;
  std::vector<uint8_t> dead;
  int64_t needed = 0, max_blocks = 1;
  for (const TestSequence& q : sequences) {
    const int64_t blocks = (int64_t{q.start} + q.count + kBlockTokens - 1) / kBlockTokens;
    needed += blocks;
    max_blocks = std::max(max_blocks, blocks);
    s.slots = std::max(s.slots, q.slot + 1);
  }
  s.pool_blocks = needed + 3;
  std::vector<int32_t> pool(static_cast<size_t>(s.pool_blocks));
  std::iota(pool.begin(), pool.end(), 0);
  for (size_t i = pool.size(); i > 1; --i) {
    std::swap(pool[i - 1], pool[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  size_t next = 0;
  for (const TestSequence& q : sequences) {
    slot.push_back(q.slot);
    start.push_back(q.start);
    row.push_back(static_cast<int32_t>(token.size()));
    count.push_back(q.count);
    floor.push_back(q.floor);
    for (int32_t i = 0; i < q.count; ++i) {
      token.push_back(static_cast<int32_t>(random.below(vocab)));
      position.push_back(q.start + i);
      seq_of_row.push_back(static_cast<int32_t>(slot.size()) - 1);
      dead.push_back(random.uniform() < dead_share ? 1 : 0);
    }
    const int64_t blocks = (int64_t{q.start} + q.count + kBlockTokens - 1) / kBlockTokens;
    for (int64_t b = 0; b < max_blocks; ++b) table.push_back(b < blocks ? pool[next++] : -1);
  }
  s.shape = "T=" + std::to_string(token.size()) + " S=" + std::to_string(slot.size());
  s.host.rows = s.device.rows = static_cast<int32_t>(token.size());
  s.host.sequences = s.device.sequences = static_cast<int32_t>(slot.size());
  s.host.max_blocks = s.device.max_blocks = static_cast<int32_t>(max_blocks);
  const auto place = [&](auto& mirror, auto values, auto member) {
    mirror = std::decay_t<decltype(mirror)>(std::move(values));
    s.host.*member = mirror.host.data();
    s.device.*member = mirror.device.data();
  };
  place(s.token, std::move(token), &StepView::token);
  place(s.position, std::move(position), &StepView::position);
  place(s.seq_of_row, std::move(seq_of_row), &StepView::seq_of_row);
  place(s.dead, std::move(dead), &StepView::dead);
  place(s.seq_slot, std::move(slot), &StepView::seq_slot);
  place(s.seq_start, std::move(start), &StepView::seq_start);
  place(s.seq_row, std::move(row), &StepView::seq_row);
  place(s.seq_count, std::move(count), &StepView::seq_count);
  place(s.seq_floor, std::move(floor), &StepView::seq_floor);
  place(s.block_table, std::move(table), &StepView::block_table);
  return s;
}

}  // namespace mdi::check
