// Checks of the dense products: every storage, odd shapes, groups, tile widths, invariance of rows; timings at the
// released shapes, prefill and decode.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <string>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/grouped.h"
#include "kernels/cuda/linear.h"
#include "random_data.h"

namespace mdi::check {
namespace {

constexpr int kWidths[] = {16, 24, 32, 64, 96, 128, 144, 160, 192, 256};

const char* kind_name(WeightKind kind) {
  return kind == WeightKind::kE4M3   ? "e4m3"
         : kind == WeightKind::kE2M1 ? "e2m1"
         : kind == WeightKind::kBF16 ? "bf16"
                                     : "f32";
}
std::string shape_of(int64_t m, int64_t n, int64_t k) {
  return "m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k);
}

template <class T>
void check_linear(Harness& h, WeightKind kind, int64_t m, int64_t n, int64_t k, Rows rows) {
  Random random(static_cast<uint64_t>(m * 7 + n * 3 + k));
  const TestWeight w = random_weight(random, kind, n, k);
  const Mirror<bf16> x(random_bf16(random, m, k, rows));
  Mirror<T> y(static_cast<size_t>(m * n));
  cpu::linear(h.cpu(), x.host.data(), m, w.host, y.host.data());
  bf16* y_bf16 = nullptr;
  float* y_f32 = nullptr;
  if constexpr (std::is_same_v<T, float>) {
    y_f32 = y.device.data();
  } else {
    y_bf16 = y.device.data();
  }
  cuda::linear(h.cuda(), x.device.data(), m, w.device, y_bf16, y_f32, n);
  // Two orders of an fp32 sum; a bf16 result may then fall to the other side of a tie.
  const bool f32 = std::is_same_v<T, float>;
  const Tolerance tolerance{.ulps = f32 ? 0.0 : 1.0, .row = 5e-5};
  h.report(std::string("linear ") + kind_name(kind) + (f32 ? " f32" : ""), shape_of(m, n, k) + " " + rows_name(rows),
           compare(y, std::max<int64_t>(n, 1), tolerance));
}

void check_linears(Harness& h) {
  struct Shape {
    int64_t n, k;
  };
  for (const auto& [kind, shapes] : {std::pair<WeightKind, std::vector<Shape>>{
                                         WeightKind::kE4M3, {{128, 256}, {320, 512}, {96, 1280}, {64, 64}, {24, 96}}},
                                     {WeightKind::kE2M1, {{128, 256}, {352, 768}, {64, 64}, {24, 96}}},
                                     {WeightKind::kBF16, {{128, 256}, {32, 512}, {200, 104}, {8, 64}, {6, 20}}}}) {
    for (const Shape& s : shapes) {
      for (const int64_t m : {0, 1, 33, 257, 300}) {
        if (h.small() && m > 33) continue;
        check_linear<bf16>(h, kind, m, s.n, s.k, Rows::kGaussian);
        if (kind == WeightKind::kBF16) check_linear<float>(h, kind, m, s.n, s.k, Rows::kGaussian);
      }
    }
    // Few columns of a long K: split into parts, a block each for few rows.
    if (kind != WeightKind::kE2M1) {
      for (const int64_t m : {1, 33, 130, 600}) {
        if (h.small() && m > 33) continue;
        check_linear<bf16>(h, kind, m, 160, 2304, Rows::kGaussian);
        if (kind == WeightKind::kBF16) check_linear<float>(h, kind, m, 136, 2088, Rows::kGaussian);
      }
    }
    if (h.small()) continue;
    for (const Rows rows : kAllRows) {
      check_linear<bf16>(h, kind, 70, 192, 5120, rows);
      check_linear<bf16>(h, kind, 300, 192, 5120, rows);
    }
  }
  check_linear<float>(h, WeightKind::kF32, 5, 40, 96, Rows::kGaussian);
  check_linear<float>(h, WeightKind::kE4M3, 5, 64, 256, Rows::kGaussian);
}

// A row's bits: the same at every m and in every tile width, whether a block takes a part of K or all of them.
void check_invariance(Harness& h, WeightKind kind, int32_t parts) {
  {
    const int64_t m = 600, n = 288, k = 1280;
    Random random(11);
    const TestWeight w = random_weight(random, kind, n, k);
    const Mirror<bf16> x(random_bf16(random, m, k));
    const auto run = [&](int64_t rows, int width) {
      DeviceArray<bf16> y(static_cast<size_t>(rows * n));
      cuda::GroupedProduct g;
      g.x = x.device.data();
      g.x_rows = rows;
      g.ldx = k;
      g.weight[0] = w.device;
      g.width = width;
      g.parts = parts;
      g.y = y.data();
      g.ldy = n;
      cuda::grouped_product(h.cuda(), g);
      return y.download();
    };
    const std::vector<bf16> want = run(m, 144);
    for (const int width : kWidths) {
      for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{64}, int64_t{333}, m}) {
        const std::vector<bf16> head(want.begin(), want.begin() + static_cast<ptrdiff_t>(rows * n));
        h.report(std::string("invariance ") + kind_name(kind) + " parts " + std::to_string(parts),
                 "m=" + std::to_string(rows) + " tiles of " + std::to_string(width),
                 compare_bits(run(rows, width), head));
      }
    }
  }
}

// Groups with rows of their own: empty ones, one row, several tiles; the rows of one group are NaN.
void check_groups(Harness& h) {
  const std::vector<int32_t> counts{0, 1, 300, 0, 37, 64, 0};
  for (const WeightKind kind : {WeightKind::kE4M3, WeightKind::kE2M1}) {
    for (const int64_t k : {512, 96}) {
      const int64_t n = 96, groups = static_cast<int64_t>(counts.size());
      Random random(5);
      const TestWeight w = random_weight(random, kind, groups * n, k);
      std::vector<int32_t> begin{0};
      for (const int32_t c : counts) begin.push_back(begin.back() + c);
      const int64_t m = begin.back();
      std::vector<bf16> rows = random_bf16(random, m, k);
      std::fill(rows.begin() + begin[4] * k, rows.begin() + begin[5] * k, bf16{0x7FC0});
      const Mirror<bf16> x(rows);
      const Mirror<int32_t> row_begin(begin);
      for (const int width : kWidths) {
        Mirror<bf16> y(static_cast<size_t>(m * n));
        for (size_t g = 0; g < counts.size(); ++g) {
          if (counts[g] == 0) continue;
          cpu::gemm(h.cpu().pool, {.x = x.host.data() + begin[g] * k,
                                   .m = counts[g],
                                   .ldx = k,
                                   .w = cpu::rows_of(w.host, static_cast<int64_t>(g) * n, n),
                                   .y_f32 = nullptr,
                                   .y_bf16 = y.host.data() + begin[g] * n,
                                   .ldy = n});
        }
        cuda::GroupedProduct p;
        p.x = x.device.data();
        p.x_rows = m;
        p.ldx = k;
        p.weight[0] = w.device;
        p.weight[0].n = n;
        p.groups = static_cast<int32_t>(groups);
        p.row_begin = row_begin.device.data();
        p.width = width;
        p.y = y.device.data();
        p.ldy = n;
        cuda::grouped_product(h.cuda(), p);
        h.report(std::string("groups ") + kind_name(kind), shape_of(m, n, k) + " tiles of " + std::to_string(width),
                 compare(y, n, {.ulps = 1, .row = 5e-5}));
      }
    }
  }
}

// The grouped first half of the attention's output: group g of the outputs takes group g of the inputs, and both row
// strides are wider than the rows.
void check_column_groups(Harness& h) {
  for (const int64_t per : {128, 256}) {
    const int64_t groups = 3, k = 512, n = groups * per, m = 77, ldx = groups * k + 8, ldy = n + 16;
    Random random(6);
    const TestWeight w = random_weight(random, WeightKind::kE4M3, n, k);
    const Mirror<bf16> x(random_bf16(random, m, ldx));
    Mirror<bf16> y(static_cast<size_t>(m * ldy));
    for (int64_t g = 0; g < groups; ++g) {
      cpu::gemm(h.cpu().pool, {.x = x.host.data() + g * k,
                               .m = m,
                               .ldx = ldx,
                               .w = cpu::rows_of(w.host, g * per, per),
                               .y_f32 = nullptr,
                               .y_bf16 = y.host.data() + g * per,
                               .ldy = ldy});
    }
    cuda::GroupedProduct p;
    p.x = x.device.data();
    p.x_rows = m;
    p.ldx = ldx;
    p.weight[0] = w.device;
    p.n_per_column_group = per;
    p.y = y.device.data();
    p.ldy = ldy;
    cuda::grouped_product(h.cuda(), p);
    h.report("column groups", shape_of(m, n, k), compare(y, ldy, {.ulps = 1, .row = 5e-5}));
  }
}

void time_product(Harness& h, const char* name, WeightKind kind, int64_t m, int64_t n, int64_t k,
                  int64_t column_groups = 1, bool f32 = false, int32_t parts = 0) {
  const double weight_bytes = static_cast<double>(n * k) * (kind == WeightKind::kBF16 ? 2 : 1);
  // Decode reads its weights from memory; a prefill's working set exceeds the L2 anyway.
  const int sets = m > 512 ? 1 : std::clamp(static_cast<int>(130e6 / weight_bytes), 1, 24);
  const DeviceWeight w(kind, n, k, sets);
  DeviceArray<bf16> x(static_cast<size_t>(m * k * column_groups));
  fill(Fill::kBF16, x.data(), m * k * column_groups);
  DeviceArray<float> y(static_cast<size_t>(m * n));
  const Work work{.bytes = weight_bytes + static_cast<double>(m) * (2.0 * static_cast<double>(k * column_groups) +
                                                                    (f32 ? 4.0 : 2.0) * static_cast<double>(n)),
                  .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)};
  h.time(
      name, shape_of(m, n, k), work,
      [&](int set) {
        cuda::GroupedProduct p;
        p.epilogue = f32 ? cuda::Epilogue::kF32 : cuda::Epilogue::kBF16;
        p.x = x.data();
        p.x_rows = m;
        p.ldx = k * column_groups;
        p.weight[0] = w.at(set);
        p.n_per_column_group = column_groups > 1 ? n / column_groups : 0;
        p.parts = parts;
        p.y = reinterpret_cast<bf16*>(y.data());
        p.y_f32 = f32 ? y.data() : nullptr;
        p.ldy = n;
        cuda::grouped_product(h.cuda(), p);
      },
      sets);
}

void time_products(Harness& h) {
  for (const int64_t m : {64, 256, 4096}) {
    time_product(h, "time wq_a", WeightKind::kE4M3, m, 1280, 5120);
    time_product(h, "time wq_b", WeightKind::kE4M3, m, 32768, 1280);
    time_product(h, "time wkv", WeightKind::kE4M3, m, 512, 5120);
    time_product(h, "time wo_a", WeightKind::kE4M3, m, 8192, 4096, 8);
    time_product(h, "time wo_b", WeightKind::kE4M3, m, 5120, 8192);
    time_product(h, "time gate", WeightKind::kBF16, m, 384, 5120, 1, true);
    time_product(h, "time index weights", WeightKind::kBF16, m, 32, 5120);
    for (const int32_t parts : {2, 4}) {
      const std::string name = " in " + std::to_string(parts) + " parts";
      time_product(h, ("time wo_b" + name).c_str(), WeightKind::kE4M3, m, 5120, 8192, 1, false, parts);
      time_product(h, ("time wo_a" + name).c_str(), WeightKind::kE4M3, m, 8192, 4096, 8, false, parts);
    }
    if (m == 256) continue;
    time_product(h, "time engram", WeightKind::kE4M3, m, 25600, 6144);
    time_product(h, "time index wq_b", WeightKind::kE4M3, m, 4096, 1280);
    time_product(h, "time compress", WeightKind::kBF16, m, 512, 5120, 1, true);
  }
  time_product(h, "time head", WeightKind::kBF16, 64, 129280, 5120, 1, true);
  time_product(h, "time square", WeightKind::kE4M3, 8192, 8192, 8192);
  time_product(h, "time square bf16", WeightKind::kBF16, 8192, 8192, 8192);
}

}  // namespace
}  // namespace mdi::check

int main(int argc, char** argv) {
  mdi::check::Harness h("gemm", argc, argv);
  if (h.wants("linear")) mdi::check::check_linears(h);
  if (h.wants("invariance")) {
    for (const mdi::WeightKind kind : {mdi::WeightKind::kE4M3, mdi::WeightKind::kE2M1, mdi::WeightKind::kBF16}) {
      for (const int32_t parts : {1, 3, 8}) {
        if (parts == 1 || kind != mdi::WeightKind::kE2M1) mdi::check::check_invariance(h, kind, parts);
      }
    }
  }
  if (h.wants("groups")) mdi::check::check_groups(h);
  if (h.wants("column groups")) mdi::check::check_column_groups(h);
  if (h.timing()) mdi::check::time_products(h);
  return h.finish();
}
