// The vision tower's stages against plain loops in double, over awkward shapes, with what must not be read poisoned.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/vision.h"

namespace mdi {
namespace {

constexpr bf16 kPoison{0x7FC0};

std::vector<bf16> random_rows(int64_t count, uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<bf16> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(to_bf16(normal(generator)));
  return values;
}

struct Attention {
  int64_t rows;
  int32_t columns, heads, head_dim;
  std::vector<float> inv_freq;

  Attention(int64_t n, int32_t cols, int32_t h, int32_t d) : rows(n), columns(cols), heads(h), head_dim(d) {
    for (int32_t i = 0; i < d / 4; ++i)
      inv_freq.push_back(std::pow(10000.0f, static_cast<float>(-4 * i) / static_cast<float>(d)));
  }

  std::vector<bf16> run(const std::vector<bf16>& qkv, int threads = 2) const {
    const auto context = make_cpu_context(threads);
    std::vector<bf16> o(static_cast<size_t>(rows * heads * head_dim + 8), kPoison);
    context->ops->vision_attention(*context, {.rows = rows,
                                              .columns = columns,
                                              .heads = heads,
                                              .head_dim = head_dim,
                                              .rope = {.inv_freq = inv_freq.data(), .rope_dim = head_dim / 2},
                                              .qkv = qkv.data(),
                                              .o = o.data()});
    for (size_t i = o.size() - 8; i < o.size(); ++i) EXPECT_EQ(o[i].bits, kPoison.bits);
    o.resize(o.size() - 8);
    return o;
  }

  // q or k of a patch, rotated.
  std::vector<double> rotated(const bf16* x, int64_t patch) const {
    const int32_t half = head_dim / 2;
    std::vector<double> y(static_cast<size_t>(head_dim));
    for (int32_t i = 0; i < half; ++i) {
      const int64_t at = i < head_dim / 4 ? patch / columns : patch % columns;
      const double angle = static_cast<float>(at) * inv_freq[static_cast<size_t>(i % (head_dim / 4))];
      const double a = to_float(x[i]), b = to_float(x[half + i]);
      y[static_cast<size_t>(i)] = round_bf16(static_cast<float>(a * std::cos(angle) - b * std::sin(angle)));
      y[static_cast<size_t>(half + i)] = round_bf16(static_cast<float>(b * std::cos(angle) + a * std::sin(angle)));
    }
    return y;
  }

  std::vector<double> expected(const std::vector<bf16>& qkv, int64_t patch, int32_t head) const {
    const int64_t part = int64_t{heads} * head_dim;
    const auto q = rotated(qkv.data() + patch * 3 * part + head * head_dim, patch);
    std::vector<double> scores, o(static_cast<size_t>(head_dim));
    for (int64_t j = 0; j < rows; ++j) {
      const auto k = rotated(qkv.data() + j * 3 * part + part + head * head_dim, j);
      double s = 0;
      for (size_t d = 0; d < k.size(); ++d) s += q[d] * k[d];
      scores.push_back(s / std::sqrt(head_dim));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - largest);
    for (int64_t j = 0; j < rows; ++j) {
      const bf16* v = qkv.data() + j * 3 * part + 2 * part + head * head_dim;
      for (size_t d = 0; d < o.size(); ++d) o[d] += scores[static_cast<size_t>(j)] / sum * to_float(v[d]);
    }
    return o;
  }
};

TEST(VisionAttention, AgainstPlainLoops) {
  uint32_t seed = 1;
  for (const auto& [rows, columns] : {std::pair{1, 1}, {63, 9}, {64, 64}, {65, 5}, {130, 13}, {192, 1}}) {
    for (int32_t head_dim : {4, 16, 20, 64, 80}) {
      const Attention a(rows, columns, 3, head_dim);
      for (float scale : {1.0f, 6.0f}) {  // flat and nearly one-hot softmax
        const auto qkv = random_rows(int64_t{rows} * 3 * 3 * head_dim, seed++, scale);
        const auto o = a.run(qkv);
        for (int64_t patch : {0, rows / 2, rows - 1}) {
          for (int32_t head = 0; head < 3; ++head) {
            const auto expected = a.expected(qkv, patch, head);
            for (int32_t d = 0; d < head_dim; ++d) {
              const float found = to_float(o[static_cast<size_t>((patch * 3 + head) * head_dim + d)]);
              // Half a bf16 step, and what fp32 loses over the sums.
              const double e = expected[static_cast<size_t>(d)];
              ASSERT_NEAR(found, e, std::fabs(e) * 0.0042 + 1e-4 * scale)
                  << rows << " rows, head dim " << head_dim << ", scale " << scale;
            }
          }
        }
      }
    }
  }
}

TEST(VisionAttention, SameAtAnyThreadCount) {
  const Attention a(300, 20, 2, 64);
  const auto qkv = random_rows(300 * 3 * 2 * 64, 5);
  const auto one = a.run(qkv, 1), three = a.run(qkv, 3);
  for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i].bits, three[i].bits);
}

TEST(VisionAttention, NoRows) { EXPECT_TRUE(Attention(0, 1, 2, 16).run({}).empty()); }

// Each product is rounded before the sum: a compiler that forms a fused multiply-add from the pair makes another
// number.
TEST(VisionRope, RoundsEveryProduct) {
  std::mt19937 generator(8);
  std::normal_distribution<float> normal(0, 3);
  for (const int32_t head_dim : {4, 20, 64, 80}) {
    const int32_t half = head_dim / 2;
    for (int round = 0; round < 2000; ++round) {
      std::vector<float> cos_sin;
      for (int32_t i = 0; i < half; ++i) {
        const float angle = normal(generator);
        cos_sin.push_back(std::cos(angle));
        cos_sin.push_back(std::sin(angle));
      }
      std::vector<bf16> x, y;
      for (int32_t i = 0; i < head_dim; ++i) x.push_back(to_bf16(normal(generator)));
      y = x;
      cpu::vision_rope(cos_sin.data(), head_dim, y.data());
      for (int32_t i = 0; i < half; ++i) {
        const float c = cos_sin[static_cast<size_t>(2 * i)], s = cos_sin[static_cast<size_t>(2 * i + 1)];
        const float a = to_float(x[static_cast<size_t>(i)]), b = to_float(x[static_cast<size_t>(half + i)]);
        const volatile float ac = a * c, bs = b * s, bc = b * c, as = a * s;
        ASSERT_EQ(y[static_cast<size_t>(i)].bits, to_bf16(ac - bs).bits);
        ASSERT_EQ(y[static_cast<size_t>(half + i)].bits, to_bf16(bc + as).bits);
      }
    }
  }
}

TEST(VisionLinear, BiasGeluResidual) {
  const auto context = make_cpu_context(2);
  const int64_t k = 588, n = 33;
  for (int64_t rows : {0, 1, 5, 1030}) {
    const auto x = random_rows(rows * k, 2), w = random_rows(n * k, 3, 0.05f), bias = random_rows(n, 4);
    const auto residual = random_rows(rows * n, 5);
    const LinearWeight weight{.kind = WeightKind::kBF16, .data = w.data(), .scale = nullptr, .n = n, .k = k};
    for (int kind = 0; kind < 4; ++kind) {  // plain, bias, gelu, residual in place
      std::vector<bf16> y = kind == 3 ? residual : std::vector<bf16>(static_cast<size_t>(rows * n), kPoison);
      context->ops->vision_linear(*context, {.rows = rows,
                                             .x = x.data(),
                                             .w = weight,
                                             .bias = kind > 0 ? bias.data() : nullptr,
                                             .gelu = kind == 2,
                                             .residual = kind == 3 ? y.data() : nullptr,
                                             .y = y.data()});
      for (int64_t i = 0; i < rows; i += 257) {
        for (int64_t j = 0; j < n; ++j) {
          double e = kind > 0 ? to_float(bias[static_cast<size_t>(j)]) : 0.0;
          for (int64_t d = 0; d < k; ++d) {
            e += double{to_float(x[static_cast<size_t>(i * k + d)])} * to_float(w[static_cast<size_t>(j * k + d)]);
          }
          if (kind == 2) e = 0.5 * e * (1 + std::erf(e / std::sqrt(2.0)));
          if (kind == 3) e += to_float(residual[static_cast<size_t>(i * n + j)]);
          ASSERT_NEAR(to_float(y[static_cast<size_t>(i * n + j)]), e, std::fabs(e) * 0.01 + 0.01) << kind;
        }
      }
    }
  }
}

TEST(VisionGate, SiluTimesUp) {
  const auto context = make_cpu_context(1);
  // gate 1, -100, 0; up 2, 3, 4
  const std::vector<float> values{1, -100, 0, 2, 3, 4};
  std::vector<bf16> gate_up, y(3, kPoison);
  for (float v : values) gate_up.push_back(to_bf16(v));
  context->ops->vision_gate(*context, {.rows = 1, .inter = 3, .gate_up = gate_up.data(), .y = y.data()});
  EXPECT_EQ(to_float(y[0]), round_bf16(round_bf16(1.0f / (1.0f + std::exp(-1.0f))) * 2));
  EXPECT_NEAR(to_float(y[1]), 0, 1e-30);
  EXPECT_EQ(to_float(y[2]), 0);
}

TEST(VisionWindows, ChannelMajorWithZeroEdges) {
  const auto context = make_cpu_context(2);
  for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 3}, {4, 5}, {7, 2}}) {
    const int32_t dim = 5, side = 3;
    const auto x = random_rows(int64_t{rows} * cols * dim, 8);
    const int32_t window_rows = (rows + 2) / 3, window_cols = (cols + 2) / 3;
    std::vector<bf16> y(static_cast<size_t>(window_rows * window_cols * dim * 9), kPoison);
    context->ops->vision_windows(
        *context, {.patch_rows = rows, .patch_cols = cols, .side = side, .dim = dim, .x = x.data(), .y = y.data()});
    size_t at = 0;
    for (int window = 0; window < window_rows * window_cols; ++window) {
      for (int c = 0; c < dim; ++c) {
        for (int cell = 0; cell < 9; ++cell, ++at) {
          const int row = window / window_cols * 3 + cell / 3, col = window % window_cols * 3 + cell % 3;
          const bool inside = row < rows && col < cols;
          const auto from = static_cast<size_t>((row * cols + col) * dim + c);
          ASSERT_EQ(y[at].bits, inside ? x[from].bits : 0) << rows << "x" << cols << " at " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mdi
