// What synthetic tensors hold: the size that a forward pass needs, and the traits of trained weights.
#include "checkpoint/synth_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "checkpoint/synth_presets.h"

namespace mdi {
namespace {

const TensorSpec& find(const std::vector<TensorSpec>& tensors, std::string_view name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [name](const TensorSpec& t) { return t.name == name; });
  EXPECT_NE(at, tensors.end()) << name;
  return *at;
}

// The first rows of a tensor.
std::vector<uint8_t> bytes_of(const ModelConfig& config, const TensorSpec& spec, const SynthTraits& traits,
                              int64_t rows = 1 << 20) {
  const TensorFill fill = plan_fill(config, spec, traits);
  rows = std::min(rows, fill.rows);
  std::vector<uint8_t> out(static_cast<size_t>(rows * fill.row_bytes));
  fill_rows(fill, 0, rows, out.data());
  return out;
}

constexpr int64_t kRows = 1024;  // enough to measure on

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

// The values that a forward pass sees, of the first kRows rows. `base`: the name without ".weight" for quantised
// weights, else the whole name.
Matrix dequantised(const ModelConfig& config, std::string_view base, const SynthTraits& traits) {
  const auto tensors = inventory(config);
  const bool quantised = std::any_of(tensors.begin(), tensors.end(),
                                     [&](const TensorSpec& t) { return t.name == std::string(base) + ".scale"; });
  const TensorSpec& spec = find(tensors, quantised ? std::string(base) + ".weight" : std::string(base));
  const auto raw = bytes_of(config, spec, traits, kRows);
  Matrix m;
  const int64_t all_rows = spec.rank == 2 ? spec.shape[0] : 1;
  m.rows = std::min(kRows, all_rows);
  m.columns = spec.elements() / all_rows * (spec.dtype == DType::kI8 ? 2 : 1);
  m.values.resize(static_cast<size_t>(m.rows * m.columns));
  std::vector<uint8_t> scales;
  int64_t scale_rows = 1;
  if (quantised) {
    const TensorSpec& scale = find(tensors, std::string(base) + ".scale");
    scales = bytes_of(config, scale, traits, kRows);
    scale_rows = all_rows / scale.shape[0];
  }
  for (int64_t i = 0; i < m.rows * m.columns; ++i) {
    const auto n = static_cast<size_t>(i);
    float v = 0;
    if (spec.dtype == DType::kE4M3) v = to_float(e4m3{raw[n]});
    if (spec.dtype == DType::kI8) v = kE2M1Values[(i % 2 == 0 ? raw[n / 2] : raw[n / 2] >> 4) & 15];
    if (spec.dtype == DType::kBF16) {
      bf16 b;
      std::memcpy(&b, raw.data() + 2 * n, 2);
      v = to_float(b);
    }
    if (spec.dtype == DType::kF32) std::memcpy(&v, raw.data() + 4 * n, 4);
    if (quantised) {
      const int64_t row = i / m.columns / scale_rows, column = i % m.columns / 32;
      v *= to_float(e8m0{scales[static_cast<size_t>(row * (m.columns / 32) + column)]});
    }
    m.values[n] = v;
  }
  return m;
}

double rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += double{v} * double{v};
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Root mean square in units of 1/sqrt(fan_in).
double gain(const Matrix& m) { return rms(m.values) * std::sqrt(static_cast<double>(m.columns)); }

TEST(SynthValues, SizesOfTheGoldenCheckpoints) {
  const ModelConfig config = synth_preset("slice");
  const SynthTraits plain{.seed = 3, .trained = false};
  EXPECT_NEAR(gain(dequantised(config, "layers.0.attn.wq_a", plain)), 1.0, 0.05);
  EXPECT_NEAR(gain(dequantised(config, "layers.0.attn.wkv", plain)), 1.0, 0.05);
  EXPECT_NEAR(gain(dequantised(config, "layers.0.attn.wq_b", plain)), std::sqrt(std::log(640.0 / 12)), 0.1);
  EXPECT_NEAR(gain(dequantised(config, "layers.0.attn.wo_b", plain)), 0.2, 0.01);
  EXPECT_NEAR(gain(dequantised(config, "layers.2.ffn.experts.3.w1", plain)), 1.25, 0.05);
  EXPECT_NEAR(gain(dequantised(config, "layers.2.ffn.experts.3.w2", plain)), 0.1, 0.01);
  EXPECT_NEAR(gain(dequantised(config, "layers.1.attn.compressor.wgate.weight", plain)), 1.5, 0.05);
  EXPECT_NEAR(gain(dequantised(config, "layers.0.ffn.gate.weight", plain)), 2.0, 0.05);
  EXPECT_NEAR(gain(dequantised(config, "layers.0.hc_attn_fn", plain)), 0.68, 0.02);
  EXPECT_NEAR(rms(dequantised(config, "layers.1.engram.embed", plain).values), 1.0, 0.05);
  EXPECT_NEAR(rms(dequantised(config, "embed.weight", plain).values), 1.0, 0.02);
  EXPECT_NEAR(rms(dequantised(config, "layers.4.attn_norm.weight", plain).values), 1.0, 0.05);
}

TEST(SynthValues, AnyRowAloneIsTheSameRow) {
  const ModelConfig config = synth_preset("tiny");
  for (const TensorSpec& spec : inventory(config)) {
    for (const bool trained : {false, true}) {
      const TensorFill fill = plan_fill(config, spec, {.seed = 5, .trained = trained});
      const auto whole = bytes_of(config, spec, {.seed = 5, .trained = trained});
      ASSERT_EQ(fill.rows * fill.row_bytes, spec.bytes()) << spec.name;
      const int64_t row = fill.rows / 2;
      std::vector<uint8_t> one(static_cast<size_t>(fill.row_bytes) + 2, 0xEE);
      fill_rows(fill, row, 1, one.data() + 1);
      EXPECT_EQ(std::memcmp(one.data() + 1, whole.data() + row * fill.row_bytes, static_cast<size_t>(fill.row_bytes)),
                0)
          << spec.name;
      EXPECT_EQ(one.front(), 0xEE);
      EXPECT_EQ(one.back(), 0xEE);
    }
  }
}

TEST(SynthValues, NoCodeIsNaN) {
  const ModelConfig config = synth_preset("tiny");
  for (const TensorSpec& spec : inventory(config)) {
    for (const uint8_t byte : bytes_of(config, spec, {.seed = 1, .trained = true})) {
      const bool nan =
          (spec.dtype == DType::kE4M3 && (byte & 0x7F) == 0x7F) || (spec.dtype == DType::kE8M0 && byte == 255);
      ASSERT_FALSE(nan) << spec.name;
    }
  }
}

// A channel whose norm weight is 1,024 times the others' meets weights that are 1,024 times smaller, in every reader of
// that norm; and the other way round.
TEST(SynthValues, TrainedChannelsAgreeWithTheirNorm) {
  const ModelConfig config = synth_preset("slice");
  const SynthTraits trained{.seed = 0, .trained = true};
  const Matrix norm = dequantised(config, "layers.1.attn_norm.weight", trained);
  std::vector<int64_t> huge, tiny;
  for (int64_t c = 0; c < norm.columns; ++c) {
    if (norm.at(0, c) > 100) huge.push_back(c);
    if (norm.at(0, c) < 0.01f && norm.at(0, c) > 0) tiny.push_back(c);
  }
  EXPECT_EQ(huge.size(), 5u);
  EXPECT_EQ(tiny.size(), 5u);
  for (const char* reader : {"layers.1.attn.wq_a", "layers.1.attn.wkv", "layers.1.attn.compressor.wkv.weight",
                             "layers.1.attn.compressor.wgate.weight", "layers.1.attn.indexer.weights_proj.weight"}) {
    const Matrix w = dequantised(config, reader, trained);
    const double usual = rms(dequantised(config, reader, {.seed = 0, .trained = false}).values);
    const auto column_rms = [&w](int64_t c) {
      double sum = 0;
      for (int64_t r = 0; r < w.rows; ++r) sum += double{w.at(r, c)} * double{w.at(r, c)};
      return std::sqrt(sum / static_cast<double>(w.rows));
    };
    for (const int64_t c : huge) EXPECT_LT(column_rms(c), usual / 100) << reader << " " << c;
    for (const int64_t c : tiny) EXPECT_GT(column_rms(c), usual * 100) << reader << " " << c;
  }
}

TEST(SynthValues, TrainedWeightsHaveDeadRowsZeroBlocksAndWideScales) {
  const ModelConfig config = synth_preset("slice");
  const SynthTraits trained{.seed = 0, .trained = true};
  for (const char* name : {"layers.0.attn.wq_a", "layers.2.ffn.experts.1.w3"}) {
    const Matrix w = dequantised(config, name, trained);
    int64_t dead = 0, zero_blocks = 0;
    for (int64_t r = 0; r < w.rows; ++r) {
      const auto* row = w.values.data() + r * w.columns;
      dead += std::all_of(row, row + w.columns, [](float v) { return v == 0; }) ? 1 : 0;
    }
    for (int64_t r = 0; r + 32 <= w.rows; r += 32) {
      for (int64_t c = 0; c + 32 <= w.columns; c += 32) {
        bool zero = true;
        for (int64_t i = 0; i < 32 && zero; ++i) {
          for (int64_t j = 0; j < 32 && zero; ++j) zero = w.at(r + i, c + j) == 0;
        }
        zero_blocks += zero ? 1 : 0;
      }
    }
    EXPECT_GT(dead, w.rows / 400) << name;
    EXPECT_LT(dead, w.rows / 40) << name;
    EXPECT_GT(zero_blocks, w.rows * w.columns / 1024 / 130) << name;
    EXPECT_LT(zero_blocks, w.rows * w.columns / 1024 / 30) << name;
  }
  const auto tensors = inventory(config);
  const auto scales = bytes_of(config, find(tensors, "layers.2.ffn.experts.1.w3.scale"), trained);
  const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
  EXPECT_GT(*high - *low, 20);
}

TEST(SynthValues, TrainedRoutingIsSkewed) {
  const ModelConfig config = synth_preset("slice");
  for (const char* name : {"layers.0.ffn.gate.bias", "layers.3.ffn.gate.bias", "mtp.0.ffn.gate.bias"}) {
    const Matrix bias = dequantised(config, name, {.seed = 0, .trained = true});
    EXPECT_GT(*std::max_element(bias.values.begin(), bias.values.end()), 0.3f) << name;
  }
}

}  // namespace
}  // namespace mdi
