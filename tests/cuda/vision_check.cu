// The vision tower's stages against the CPU backend: odd grids, one patch, heads of every kind, rows that must not be
// read holding NaN; and the times of a small and of the largest image.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {

namespace {

constexpr int64_t kBehind = 3;  // rows behind the last one that hold NaN and stay as they are

std::string shape_of(std::initializer_list<int64_t> sizes, const std::string& rest = "") {
  std::string text = "[";
  for (const int64_t n : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "] " + rest;
}

// Rows of an input with poisoned rows behind them.
Mirror<bf16> input(Random& random, int64_t rows, int64_t columns, Rows kind = Rows::kGaussian, float scale = 1.0f) {
  std::vector<bf16> values = random_bf16(random, rows, columns, kind, scale);
  values.resize(static_cast<size_t>((rows + kBehind) * columns), bf16{0xFFFF});
  return Mirror<bf16>(std::move(values));
}
Mirror<bf16> output(int64_t rows, int64_t columns) {
  return Mirror<bf16>(static_cast<size_t>((rows + kBehind) * columns));
}

// Tolerance, and how many values at most may differ at all: sums in another order flip few roundings.
void report(Harness& h, const std::string& name, const std::string& shape, const Mirror<bf16>& y, int64_t columns,
            Tolerance tolerance, double share) {
  h.report(name, shape, compare(y, columns, tolerance));
  const auto elements = static_cast<double>(y.host.size());
  Comparison c = compare_bits(y, 4 + static_cast<int64_t>(elements * share));
  h.report(name + " bits", shape, c);
}

// ---- products -------------------------------------------------------------------------------------------------------
enum class Finish { kNone, kBias, kGelu, kResidual, kInPlace };

void check_linear(Harness& h, int64_t rows, int64_t n, int64_t k, Finish finish, Rows kind = Rows::kGaussian) {
  Random random(static_cast<uint64_t>(rows * 7 + n * 3 + k));
  const Mirror<bf16> x = input(random, rows, k, kind);
  const TestWeight w = random_weight(random, WeightKind::kBF16, n, k);
  const Mirror<bf16> bias(random_bf16(random, 1, n)), residual = input(random, rows, n);
  Mirror<bf16> y = output(rows, n);
  if (finish == Finish::kInPlace) {
    y.host = residual.host;
    y.sync();
  }
  const auto arguments = [&](auto side, const LinearWeight& weight) {
    VisionLinearArgs a;
    a.rows = rows, a.x = side(x), a.w = weight, a.y = const_cast<bf16*>(side(y));
    a.bias = finish != Finish::kNone ? side(bias) : nullptr;
    a.gelu = finish == Finish::kGelu;
    a.residual = finish == Finish::kResidual ? side(residual) : finish == Finish::kInPlace ? a.y : nullptr;
    return a;
  };
  cpu::vision_linear(h.cpu(), arguments([](const auto& m) { return m.host.data(); }, w.host));
  cuda::vision_linear(h.cuda(), arguments([](const auto& m) { return m.device.data(); }, w.device));
  const char* names[] = {"plain", "bias", "gelu", "residual", "in place"};
  // One rounding of the sum moves what follows by about as much; by more of it beside a residual that cancels it, or
  // where the GELU is much smaller than its argument.
  const double row = finish == Finish::kResidual || finish == Finish::kInPlace ? 8e-3
                     : finish == Finish::kGelu                                 ? 4e-2
                                                                               : 1e-5;
  report(h, "vision_linear",
         shape_of({rows, n, k}, std::string(names[static_cast<int>(finish)]) + " " + rows_name(kind)), y, n,
         {.ulps = 2, .row = row}, 0.02);
}

void check_linears(Harness& h) {
  struct Shape {
    int64_t n, k;
  };
  // Patches (588), whole tiles, a ragged n, one that is too short for tiles and two that the tensor copy engine cannot
  // address.
  const std::vector<Shape> shapes = {{64, 588}, {192, 256}, {1024, 1024}, {136, 264}, {192, 64}, {33, 588}, {40, 30}};
  std::vector<int64_t> sizes = {0, 1, 5, 64, 130, 257, 1030};
  if (h.small()) sizes = {5, 130};
  for (const Shape& s : shapes) {
    for (const int64_t rows : sizes) {
      for (const Finish f : {Finish::kNone, Finish::kBias, Finish::kGelu, Finish::kResidual, Finish::kInPlace}) {
        // On the tensor cores and on the plain kernel all of them, elsewhere one.
        if (!h.small() || s.n == 136 || s.n == 40 || f == Finish::kInPlace) check_linear(h, rows, s.n, s.k, f);
      }
    }
    if (h.small()) continue;
    for (const Rows kind : kAllRows) check_linear(h, 70, s.n, s.k, Finish::kResidual, kind);
  }
  // The last row alone has the bits that it has among the others, whatever tile it falls into.
  Random random(9);
  const int64_t n = 512, k = 588;
  const TestWeight w = random_weight(random, WeightKind::kBF16, n, k);
  const Mirror<bf16> bias(random_bf16(random, 1, n));
  for (const int64_t rows : {2, 65, 300, 1530}) {
    const Mirror<bf16> x = input(random, rows, k);
    Mirror<bf16> all = output(rows, n), alone = output(1, n);
    VisionLinearArgs a{
        .rows = rows, .x = x.device.data(), .w = w.device, .bias = bias.device.data(), .y = all.device.data()};
    cuda::vision_linear(h.cuda(), a);
    a.rows = 1, a.x += (rows - 1) * k, a.y = alone.device.data();
    cuda::vision_linear(h.cuda(), a);
    const std::vector<bf16> whole = all.device.download(), one = alone.device.download();
    const auto last = whole.begin() + (rows - 1) * n;
    h.report("vision_linear alone", shape_of({rows, n, k}),
             compare_bits(std::vector<bf16>(one.begin(), one.begin() + n), std::vector<bf16>(last, last + n)));
  }
}

// ---- rows -----------------------------------------------------------------------------------------------------------
void check_norm(Harness& h, int64_t rows, int32_t dim, Rows kind) {
  Random random(static_cast<uint64_t>(rows + dim));
  const Mirror<bf16> x = input(random, rows, dim, kind), weight(random_bf16(random, 1, dim));
  Mirror<bf16> y = output(rows, dim);
  cpu::vision_norm(h.cpu(), {rows, dim, 1e-6f, x.host.data(), weight.host.data(), y.host.data()});
  cuda::vision_norm(h.cuda(), {rows, dim, 1e-6f, x.device.data(), weight.device.data(), y.device.data()});
  h.report("vision_norm", shape_of({rows, dim}, rows_name(kind)), compare_bits(y));
}

void check_gate(Harness& h, int64_t rows, int32_t inter, Rows kind) {
  Random random(static_cast<uint64_t>(rows * 5 + inter));
  Mirror<bf16> gate_up = input(random, rows, 2 * inter, kind, 3.0f);
  if (rows > 0) {  // far out on both sides: e^-gate overflows and vanishes
    gate_up.host[0] = to_bf16(-200.0f);
    gate_up.host[1] = to_bf16(200.0f);
    gate_up.sync();
  }
  Mirror<bf16> y = output(rows, inter);
  cpu::vision_gate(h.cpu(), {rows, inter, gate_up.host.data(), y.host.data()});
  cuda::vision_gate(h.cuda(), {rows, inter, gate_up.device.data(), y.device.data()});
  report(h, "vision_gate", shape_of({rows, inter}, rows_name(kind)), y, inter, {.ulps = 2, .row = 0}, 0.001);
}

void check_windows(Harness& h, int32_t patch_rows, int32_t patch_cols, int32_t side, int32_t dim) {
  Random random(static_cast<uint64_t>(patch_rows * 100 + patch_cols));
  const int64_t windows = int64_t{(patch_rows + side - 1) / side} * ((patch_cols + side - 1) / side);
  const Mirror<bf16> x = input(random, int64_t{patch_rows} * patch_cols, dim);
  Mirror<bf16> y = output(windows, int64_t{dim} * side * side);
  cpu::vision_windows(h.cpu(), {patch_rows, patch_cols, side, dim, x.host.data(), y.host.data()});
  cuda::vision_windows(h.cuda(), {patch_rows, patch_cols, side, dim, x.device.data(), y.device.data()});
  h.report("vision_windows", shape_of({patch_rows, patch_cols, dim}, "side " + std::to_string(side)), compare_bits(y));
}

// ---- attention ------------------------------------------------------------------------------------------------------
void check_attention(Harness& h, int64_t rows, int32_t columns, int32_t heads, int32_t head_dim, Rows kind,
                     float scale) {
  Random random(static_cast<uint64_t>(rows * 31 + head_dim));
  std::vector<float> frequencies;
  for (int32_t i = 0; i < head_dim / 4; ++i) {
    frequencies.push_back(std::pow(10000.0f, static_cast<float>(-4 * i) / static_cast<float>(head_dim)));
  }
  const Mirror<float> inv_freq(frequencies);
  const int64_t width = int64_t{heads} * head_dim;
  const Mirror<bf16> qkv = input(random, rows, 3 * width, kind, scale);
  Mirror<bf16> o = output(rows, width);
  const auto run = [&](auto stage, Context& context, auto side, bf16* to) {
    stage(context, {rows, columns, heads, head_dim, {side(inv_freq), head_dim / 2}, side(qkv), to});
  };
  const auto device = [](const auto& m) { return m.device.data(); };
  run(
      cpu::vision_attention, h.cpu(), [](const auto& m) { return m.host.data(); }, o.host.data());
  run(cuda::vision_attention, h.cuda(), device, o.device.data());
  const std::string shape = shape_of({rows, heads, head_dim}, std::to_string(columns) + " columns " + rows_name(kind) +
                                                                  " x " + std::to_string(static_cast<int>(scale)));
  // The weights' low parts go in too: what is left is the order of fp32 sums and the exponentials' last bits.
  report(h, "vision_attention", shape, o, head_dim, {.ulps = 1, .row = 1e-4}, 0.01);
  Mirror<bf16> again = output(rows, width);
  run(cuda::vision_attention, h.cuda(), device, again.device.data());
  h.report("vision_attention again", shape, compare_bits(again.device.download(), o.device.download()));
}

void check_attentions(Harness& h) {
  struct Grid {
    int64_t rows;
    int32_t columns;
  };
  // One patch, one tile more or less, one row and one column of patches, more than one block of 192 queries.
  std::vector<Grid> grids = {{0, 1}, {1, 1}, {63, 9}, {64, 64}, {65, 5}, {130, 13}, {192, 1}, {193, 193}};
  if (!h.small()) grids.insert(grids.end(), {{1530, 45}, {577, 577}, {1000, 4}});
  if (h.small()) grids = {{1, 1}, {65, 5}, {193, 193}};
  for (const Grid& g : grids) {
    if (h.small()) {
      check_attention(h, g.rows, g.columns, 3, 64, Rows::kGaussian, 1.0f);
      for (const int32_t head_dim : {20, 256})
        check_attention(h, g.rows, g.columns, 2, head_dim, Rows::kGaussian, 1.0f);
      continue;
    }
    for (const float scale : {1.0f, 6.0f}) {  // flat and nearly one-hot weights
      check_attention(h, g.rows, g.columns, 3, 64, Rows::kGaussian, scale);
      for (const int32_t head_dim : {4, 16, 20, 80, 256}) {
        if (g.rows <= 200) check_attention(h, g.rows, g.columns, 2, head_dim, Rows::kGaussian, scale);
      }
    }
    for (const Rows kind : {Rows::kPositive, Rows::kHugeChannel, Rows::kDeadRows, Rows::kZeroBlocks}) {
      check_attention(h, g.rows, g.columns, 2, 64, kind, 1.0f);
    }
  }
}

// ---- time -----------------------------------------------------------------------------------------------------------
struct Released {
  static constexpr int64_t kDim = 1024, kInter = 2816, kHeads = 16, kLayers = 32, kText = 5120, kPixels = 588;
};

// An image of the released tower: weights of one block serve all, as their values do not matter for time.
struct TimedTower {
  using R = Released;
  Harness& h;
  int32_t patch_rows, patch_cols;
  int64_t n, windows;
  DeviceWeight patch, wqkv, wo, w1, w2, a1, a2;
  DeviceArray<bf16> bias, x, normed, wide, narrow, grouped, hidden, features;
  DeviceArray<float> frequencies;

  TimedTower(Harness& harness, int32_t rows, int32_t cols)
      : h(harness),
        patch_rows(rows),
        patch_cols(cols),
        n(int64_t{rows} * cols),
        windows(int64_t{(rows + 2) / 3} * ((cols + 2) / 3)),
        patch(WeightKind::kBF16, R::kDim, R::kPixels, 1),
        wqkv(WeightKind::kBF16, 3 * R::kDim, R::kDim, 1),
        wo(WeightKind::kBF16, R::kDim, R::kDim, 1),
        w1(WeightKind::kBF16, 2 * R::kInter, R::kDim, 1),
        w2(WeightKind::kBF16, R::kDim, R::kInter, 1),
        a1(WeightKind::kBF16, R::kText, 9 * R::kDim, 1),
        a2(WeightKind::kBF16, R::kText, R::kText, 1),
        bias(2 * R::kInter),
        x(static_cast<size_t>(n * R::kDim)),
        normed(static_cast<size_t>(n * R::kDim)),
        wide(static_cast<size_t>(n * 2 * R::kInter)),
        narrow(static_cast<size_t>(n * R::kInter)),
        grouped(static_cast<size_t>(windows * 9 * R::kDim)),
        hidden(static_cast<size_t>(windows * R::kText)),
        features(static_cast<size_t>(windows * R::kText)),
        frequencies(16) {
    for (const auto* a : {&bias, &x, &normed, &wide, &narrow, &grouped, &hidden}) {
      fill(Fill::kBF16, a->data(), static_cast<int64_t>(a->size()));
    }
    std::vector<float> f;
    for (int i = 0; i < 16; ++i) f.push_back(std::pow(10000.0f, static_cast<float>(-2 * i) / 32.0f));
    frequencies.upload(f);
  }

  void linear(int64_t rows, const DeviceArray<bf16>& from, const DeviceWeight& w, const DeviceArray<bf16>& to,
              bool with_bias, bool residual = false, bool gelu = false) const {
    cuda::vision_linear(h.cuda(), {.rows = rows,
                                   .x = from.data(),
                                   .w = w.weight,
                                   .bias = with_bias ? bias.data() : nullptr,
                                   .gelu = gelu,
                                   .residual = residual ? to.data() : nullptr,
                                   .y = to.data()});
  }
  void norm() const {
    cuda::vision_norm(h.cuda(), {n, static_cast<int32_t>(R::kDim), 1e-6f, x.data(), bias.data(), normed.data()});
  }
  void attention() const {
    cuda::vision_attention(
        h.cuda(),
        {n, patch_cols, static_cast<int32_t>(R::kHeads), 64, {frequencies.data(), 32}, wide.data(), narrow.data()});
  }
  void gate() const { cuda::vision_gate(h.cuda(), {n, static_cast<int32_t>(R::kInter), wide.data(), narrow.data()}); }
  void gather() const {
    cuda::vision_windows(h.cuda(),
                         {patch_rows, patch_cols, 3, static_cast<int32_t>(R::kDim), x.data(), grouped.data()});
  }
  void tower() const {
    linear(n, wide, patch, x, true);
    for (int64_t layer = 0; layer < R::kLayers; ++layer) {
      norm();
      linear(n, normed, wqkv, wide, true);
      attention();
      linear(n, narrow, wo, x, true, true);
      norm();
      linear(n, normed, w1, wide, false);
      gate();
      linear(n, narrow, w2, x, false, true);
    }
    norm();
    gather();
    linear(windows, grouped, a1, hidden, true, false, true);
    linear(windows, hidden, a2, features, true);
  }
};

Work product(int64_t rows, int64_t n, int64_t k, int64_t reads = 0) {
  const auto r = static_cast<double>(rows), out = static_cast<double>(n), in = static_cast<double>(k);
  return {.bytes = 2 * (r * in + out * in + r * out + static_cast<double>(reads)), .flops = 2 * r * out * in};
}

void time_image(Harness& h, int32_t patch_rows, int32_t patch_cols) {
  using R = Released;
  const TimedTower t(h, patch_rows, patch_cols);
  const std::string shape = std::to_string(patch_rows) + " x " + std::to_string(patch_cols) + " patches";
  const auto n = static_cast<double>(t.n);
  h.time("patches", shape, product(t.n, R::kDim, R::kPixels), [&](int) { t.linear(t.n, t.wide, t.patch, t.x, true); });
  h.time("norm", shape, {.bytes = n * 4096}, [&](int) { t.norm(); });
  h.time("wqkv", shape, product(t.n, 3 * R::kDim, R::kDim),
         [&](int) { t.linear(t.n, t.normed, t.wqkv, t.wide, true); });
  // The floor counts P V once: its second part is the price of fp32 weights.
  h.time("attention", shape, {.bytes = n * 8192, .flops = 4 * n * n * 1024}, [&](int) { t.attention(); });
  h.time("wo", shape, product(t.n, R::kDim, R::kDim, t.n * R::kDim),
         [&](int) { t.linear(t.n, t.narrow, t.wo, t.x, true, true); });
  h.time("w1", shape, product(t.n, 2 * R::kInter, R::kDim), [&](int) { t.linear(t.n, t.normed, t.w1, t.wide, false); });
  h.time("gate", shape, {.bytes = n * 3 * 5632}, [&](int) { t.gate(); });
  h.time("w2", shape, product(t.n, R::kDim, R::kInter, t.n * R::kDim),
         [&](int) { t.linear(t.n, t.narrow, t.w2, t.x, false, true); });
  h.time("windows", shape, {.bytes = n * 4096}, [&](int) { t.gather(); });
  h.time("aligner w1", shape, product(t.windows, R::kText, 9 * R::kDim),
         [&](int) { t.linear(t.windows, t.grouped, t.a1, t.hidden, true, false, true); });
  h.time("aligner w2", shape, product(t.windows, R::kText, R::kText),
         [&](int) { t.linear(t.windows, t.hidden, t.a2, t.features, true); });
  const double block = product(1, 4 * R::kDim + 3 * R::kInter, R::kDim).flops;
  const double rest = n * product(1, R::kDim, R::kPixels).flops +
                      static_cast<double>(t.windows) * product(1, R::kText, 9 * R::kDim + R::kText).flops;
  h.time("tower", shape, {.bytes = 0.9e9, .flops = static_cast<double>(R::kLayers) * n * (block + 4096 * n) + rest},
         [&](int) { t.tower(); });
}

int run(int argc, char** argv) {
  Harness h("vision", argc, argv, int64_t{1} << 30);
  if (h.wants("linear")) check_linears(h);
  for (const Rows kind : kAllRows) {
    for (const int64_t rows : {0, 1, 5, 130}) {
      if (h.small() && (kind != Rows::kGaussian || rows != 5)) continue;
      if (h.wants("norm")) check_norm(h, rows, 64, kind);
      if (h.wants("norm")) check_norm(h, rows, 1024, kind);
      if (h.wants("gate")) check_gate(h, rows, 2816, kind);
      if (h.wants("gate")) check_gate(h, rows, 33, kind);
    }
  }
  if (h.wants("windows")) {
    for (const int32_t dim : {20, 64, 1024}) {
      if (h.small() && dim != 64) continue;
      check_windows(h, 1, 1, 3, dim);
      check_windows(h, 1, 7, 3, dim);
      check_windows(h, 8, 3, 3, dim);
      check_windows(h, 5, 4, 2, dim);
      check_windows(h, 34, 45, 3, dim);
    }
  }
  if (h.wants("attention")) check_attentions(h);
  if (h.timing()) {
    time_image(h, 34, 45);  // 448 x 336 pixels
    time_image(h, 93, 96);  // as large as 1,024 tokens allow
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
