// Row operations against the oracle's reference functions, bit for bit.
#include "harness.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {

namespace {

std::string shape_of(int64_t rows, int64_t k, Rows kind) {
  return "[" + std::to_string(rows) + ", " + std::to_string(k) + "] " + rows_name(kind);
}

// Rows of `stride` elements of which k are the row; the rest stays NaN.
Mirror<bf16> padded_rows(Random& random, int64_t rows, int64_t k, int64_t stride, Rows kind) {
  const auto values = random_bf16(random, rows, k, kind);
  std::vector<bf16> out(static_cast<size_t>(rows * stride), bf16{0xFFFF});
  for (int64_t i = 0; i < rows; ++i) std::copy_n(values.begin() + i * k, k, out.begin() + i * stride);
  return Mirror<bf16>(std::move(out));
}

std::vector<float> frequencies(int32_t rope_dim) {
  std::vector<float> out(static_cast<size_t>(rope_dim / 2));
  cpu::rope_frequencies({.rope_dim = rope_dim, .theta = 160000, .factor = 16, .original_seq_len = 65536}, out.data());
  return out;
}

// Positions that span the model's range.
std::vector<int32_t> positions(Random& random, int64_t rows) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < rows; ++i) {
    out.push_back(i == 0 ? 0 : i == 1 ? 1048575 : static_cast<int32_t>(random.below(1048576)));
  }
  return out;
}

// ---- every bf16 value through the device's formats ------------------------------------------------------------------
__global__ void formats_kernel(uint8_t* codes4, uint8_t* codes8, float* values8, float* values4, uint8_t* scales) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const float v = cuda::widen(bf16{static_cast<uint16_t>(i)});
  codes4[i] = static_cast<uint8_t>(cuda::e2m1_code(v));
  codes8[i] = static_cast<uint8_t>(cuda::e4m3_codes(v, 0.0f));
  scales[i] = static_cast<uint8_t>(cuda::scale_byte(i & 0x7FFFu, cuda::kActFloor, cuda::kInverse448));
  if (i < 256) values8[i] = cuda::e4m3_float(e4m3{static_cast<uint8_t>(i)});
  if (i < 16) values4[i] = cuda::e2m1_value(i);
}

void check_formats(Harness& h) {
  Mirror<uint8_t> codes4(size_t{65536}), codes8(size_t{65536}), scales(size_t{65536});
  Mirror<float> values8(size_t{256}), values4(size_t{16});
  for (uint32_t i = 0; i < 65536; ++i) {
    const bf16 x{static_cast<uint16_t>(i)};
    const float v = to_float(x);
    const bool nan = (i & 0x7FFF) > 0x7F80;
    const bool finite = (i & 0x7FFF) < 0x7F80;
    codes4.host[i] = to_e2m1(v);
    codes8.host[i] = to_e4m3(v).bits;
    scales.host[i] = finite ? block_scale(std::max(std::fabs(v), 1e-4f), kInv448).bits : 255;
    if (nan) {  // the code of a NaN is not specified; e4m3 must be a NaN of either sign
      codes8.host[i] = 0x7F;
      codes4.host[i] = static_cast<uint8_t>((i >> 12) & 8);
    }
  }
  for (uint32_t i = 0; i < 256; ++i) values8.host[i] = to_float(e4m3{static_cast<uint8_t>(i)});
  for (uint32_t i = 0; i < 16; ++i) values4.host[i] = kE2M1Values[i];
  formats_kernel<<<256, 256, 0, h.cuda().stream>>>(codes4.device.data(), codes8.device.data(), values8.device.data(),
                                                   values4.device.data(), scales.device.data());
  h.report("formats", "e2m1 codes of every bf16", compare_bits(codes4));
  h.report("formats", "e4m3 codes of every bf16", compare_bits(codes8));
  h.report("formats", "act scale of every bf16", compare_bits(scales));
  h.report("formats", "e4m3 values", compare(values8, 256, {}));
  h.report("formats", "e2m1 values", compare_bits(values4));
}

// ---- act_quant ------------------------------------------------------------------------------------------------------
void check_act_quant(Harness& h, int64_t rows, int64_t k, int64_t pad, Rows kind) {
  Random random(static_cast<uint64_t>(rows * 1000 + k + pad));
  const int64_t blocks = (k + 31) / 32;
  Mirror<bf16> x = padded_rows(random, rows, k, k + pad, kind);
  if (rows > 2) {  // one row with a NaN, one with an infinity
    x.host[static_cast<size_t>((k + pad) + k / 2)] = bf16{0x7FC1};
    x.host[static_cast<size_t>(2 * (k + pad))] = bf16{0x7F80};
    x.sync();
  }
  Mirror<bf16> y(static_cast<size_t>(rows * (k + pad)));
  Mirror<e4m3> q(static_cast<size_t>(rows * k));
  Mirror<e8m0> scale(static_cast<size_t>(rows * blocks));
  for (int64_t i = 0; i < rows; ++i) {
    const bf16* row = x.host.data() + i * (k + pad);
    cpu::act_quant_dequant(row, k, y.host.data() + i * (k + pad));
    cpu::act_quant(row, k, q.host.data() + i * k, scale.host.data() + i * blocks);
  }
  cuda::act_quant_dequant_rows(h.cuda(), x.device.data(), k + pad, rows, k, y.device.data(), k + pad);
  cuda::act_quant_rows(h.cuda(), x.device.data(), k + pad, rows, k, q.device.data(), k, scale.device.data(), blocks);
  const std::string shape = shape_of(rows, k, kind) + (pad > 0 ? " padded" : "");
  h.report("act_quant_dequant", shape, compare_bits(y));
  h.report("act_quant codes", shape, compare_bits(q));
  h.report("act_quant scales", shape, compare_bits(scale));
}

// ---- norms ----------------------------------------------------------------------------------------------------------
void check_norm(Harness& h, int64_t rows, int64_t n, int64_t pad, Rows kind) {
  Random random(static_cast<uint64_t>(rows * 77 + n));
  const Mirror<bf16> x = padded_rows(random, rows, n, n + pad, kind);
  const Mirror<bf16> w(random_bf16(random, 1, n));
  Mirror<bf16> y(static_cast<size_t>(rows * (n + pad))), y2(y.host.size()), quantised(static_cast<size_t>(rows * n));
  for (int64_t i = 0; i < rows; ++i) {
    cpu::rms_norm(x.host.data() + i * (n + pad), w.host.data(), n, 1e-20f, y.host.data() + i * (n + pad));
    cpu::act_quant_dequant(y.host.data() + i * (n + pad), n, quantised.host.data() + i * n);
  }
  y2.host = y.host;
  cuda::rms_norm_rows(h.cuda(), x.device.data(), n + pad, w.device.data(), rows, n, 1e-20f, y.device.data(), n + pad);
  h.report("rms_norm", shape_of(rows, n, kind), compare_bits(y));
  if (n % 32 != 0) return;
  cuda::rms_norm_quant_rows(h.cuda(), x.device.data(), n + pad, w.device.data(), rows, n, 1e-20f, y2.device.data(),
                            n + pad, quantised.device.data());
  h.report("rms_norm_quant", shape_of(rows, n, kind) + " norm", compare_bits(y2));
  h.report("rms_norm_quant", shape_of(rows, n, kind) + " operand", compare_bits(quantised));
}

// ---- rope -----------------------------------------------------------------------------------------------------------
void check_rope(Harness& h, int64_t rows, int32_t heads, int32_t dim, int32_t rope_dim, Rows kind) {
  Random random(static_cast<uint64_t>(rows + heads * 31 + dim));
  const Mirror<float> f(frequencies(rope_dim));
  const Mirror<int32_t> position(positions(random, rows));
  const RopeTable host{f.host.data(), rope_dim}, device{f.device.data(), rope_dim};
  const auto values = random_bf16(random, rows * heads, dim, kind);
  const std::string shape = shape_of(rows, int64_t{heads} * dim, kind) + " heads " + std::to_string(heads);
  std::vector<float> angles(static_cast<size_t>(rope_dim));
  for (const bool inverse : {false, true}) {
    Mirror<bf16> x(values);
    for (int64_t t = 0; t < rows; ++t) {
      cpu::rope_angles(host, position.host[static_cast<size_t>(t)], angles.data());
      for (int32_t i = 0; i < heads; ++i) {
        cpu::rope_apply(angles.data(), rope_dim, x.host.data() + (t * heads + i) * dim, dim, inverse);
      }
    }
    cuda::rope_rows(h.cuda(), device, position.device.data(), rows, heads, dim, x.device.data(), inverse);
    h.report(inverse ? "rope inverse" : "rope", shape, compare_bits(x));
    if (inverse || dim % 64 != 0) continue;
    const auto n = static_cast<size_t>(rows * heads * dim);
    Mirror<uint8_t> codes(n / 2);
    Mirror<e8m0> scales(n / 32);
    Mirror<bf16> dequantised(n);
    const Mirror<bf16> raw(values);
    std::vector<float> wide(static_cast<size_t>(dim));
    for (int64_t i = 0; i < rows * heads; ++i) {
      cpu::fp4_quant_e8m0(x.host.data() + i * dim, dim, codes.host.data() + i * dim / 2,
                          scales.host.data() + i * dim / 32);
      cpu::fp4_dequant_e8m0(codes.host.data() + i * dim / 2, scales.host.data() + i * dim / 32, dim, wide.data());
      for (int32_t j = 0; j < dim; ++j)
        dequantised.host[static_cast<size_t>(i * dim + j)] = to_bf16(wide[static_cast<size_t>(j)]);
    }
    cuda::rope_fp4_rows(h.cuda(), device, position.device.data(), rows, heads, dim, raw.device.data(),
                        codes.device.data(), scales.device.data(), dequantised.device.data());
    h.report("rope_fp4 codes", shape, compare_bits(codes));
    h.report("rope_fp4 scales", shape, compare_bits(scales));
    h.report("rope_fp4 values", shape, compare_bits(dequantised));
  }
}

void check_window(Harness& h, int64_t rows, int32_t dim, int32_t rope_dim, Rows kind) {
  Random random(static_cast<uint64_t>(rows + dim));
  const Mirror<float> f(frequencies(rope_dim));
  const Mirror<int32_t> position(positions(random, rows));
  const Mirror<bf16> kv(random_bf16(random, rows, dim, kind)), norm(random_bf16(random, 1, dim));
  const WindowRow layout{dim};
  Mirror<std::byte> out(static_cast<size_t>(rows * layout.bytes()));
  std::vector<float> angles(static_cast<size_t>(rope_dim));
  std::vector<bf16> row(static_cast<size_t>(dim));
  for (int64_t t = 0; t < rows; ++t) {
    cpu::rms_norm(kv.host.data() + t * dim, norm.host.data(), dim, 1e-20f, row.data());
    cpu::rope_angles({f.host.data(), rope_dim}, position.host[static_cast<size_t>(t)], angles.data());
    cpu::rope_apply(angles.data(), rope_dim, row.data(), dim, false);
    std::byte* to = out.host.data() + t * layout.bytes();
    cpu::act_quant(row.data(), dim, WindowRow::codes(to), layout.scales(to));
  }
  cuda::window_rows(h.cuda(), {f.device.data(), rope_dim}, position.device.data(), rows, dim, kv.device.data(),
                    norm.device.data(), 1e-20f, out.device.data());
  h.report("window_rows", shape_of(rows, dim, kind), compare_bits(out));
}

// Both planes of the completed rows; the rest of the pool stays poisoned on both sides.
void check_cache_rows(Harness& h, const std::vector<TestSequence>& sequences, int32_t ratio, int32_t dim,
                      int32_t key_dim, int32_t rope_dim, Rows kind) {
  Random random(static_cast<uint64_t>(ratio * 1000 + dim));
  const TestStep step = make_step(random, sequences, 100);
  const Mirror<float> f(frequencies(rope_dim));
  const int64_t rows = step.host.rows;
  const Mirror<bf16> latent(random_bf16(random, rows, dim, kind)), key(random_bf16(random, rows, key_dim, kind));
  const Mirror<bf16> norm(random_bf16(random, 1, key_dim));
  const CacheLayout layout = make_cache_layout({2, ratio}, dim, key_dim);
  const SourceLayout& source = layout.sources[1];
  Mirror<std::byte> pool(static_cast<size_t>(step.pool_blocks * layout.block_bytes));
  std::vector<float> angles(static_cast<size_t>(rope_dim));
  std::vector<bf16> row(static_cast<size_t>(std::max(dim, key_dim)));
  for (int64_t t = 0; t < rows; ++t) {
    const int32_t p = step.host.position[t];
    if ((p + 1) % ratio != 0) continue;
    const int32_t j = p / ratio, at = j % source.rows;
    const int32_t id = step.host.block_table[step.host.seq_of_row[t] * step.host.max_blocks + j / source.rows];
    std::byte* block = pool.host.data() + id * layout.block_bytes;
    cpu::rope_angles({f.host.data(), rope_dim}, j * ratio, angles.data());
    cpu::rms_norm(key.host.data() + t * key_dim, norm.host.data(), key_dim, 1e-20f, row.data());
    cpu::rope_apply(angles.data(), rope_dim, row.data(), key_dim, false);
    cpu::fp4_quant_e8m0(row.data(), key_dim, source.key_codes_at(block, at), source.key_scales_at(block, at));
    std::copy_n(latent.host.data() + t * dim, dim, row.data());
    cpu::rope_apply(angles.data(), rope_dim, row.data(), dim, false);
    cpu::fp4_quant_e4m3(row.data(), dim, source.kv_codes_at(block, at), source.kv_scales_at(block, at));
  }
  cuda::write_cache_rows(h.cuda(), step.device, {f.device.data(), rope_dim}, latent.device.data(), key.device.data(),
                         norm.device.data(), 1e-20f, {pool.device.data(), layout.block_bytes, source});
  h.report("write_cache_rows", step.shape + " ratio " + std::to_string(ratio) + " " + rows_name(kind),
           compare_bits(pool));
}

// ---- time -----------------------------------------------------------------------------------------------------------
// Kept rows of an array: all, the last ones, every third, and identity at the start with a gap behind it.
void check_keep_rows(Harness& h, int64_t row_bytes, const std::vector<int32_t>& kept, const std::string& what) {
  Random random(static_cast<uint64_t>(row_bytes));
  const int64_t rows = 300;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * row_bytes));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.next());
  Mirror<uint8_t> data(std::move(bytes));
  const Mirror<int32_t> index(kept);
  KeepRowsArgs args{.rows = static_cast<int32_t>(kept.size()),
                    .index = index.host.data(),
                    .data = data.host.data(),
                    .row_bytes = row_bytes};
  cpu::keep_rows(h.cpu(), args);
  args.index = index.device.data();
  args.data = data.device.data();
  cuda::keep_rows(h.cuda(), args);
  h.report("keep_rows", what + " of 300 rows, " + std::to_string(row_bytes) + " bytes", compare_bits(data));
}

void check_keep_rows(Harness& h) {
  std::vector<int32_t> all, last, third, gap, tail;
  for (int32_t i = 0; i < 300; ++i) {
    all.push_back(i);
    if (i >= 172) last.push_back(i);
    if (i % 3 == 1) third.push_back(i);
    if (i < 21 || i == 40 || i > 290) gap.push_back(i);
    if (i == 299) tail.push_back(i);
  }
  for (const int64_t row_bytes : {4, 16, 20, 2048, 40960}) {
    if (h.small() && row_bytes > 2048) continue;
    check_keep_rows(h, row_bytes, all, "all");
    check_keep_rows(h, row_bytes, last, "the last 128");
    check_keep_rows(h, row_bytes, third, "every third");
    check_keep_rows(h, row_bytes, gap, "21, one and nine");
    check_keep_rows(h, row_bytes, tail, "one");
    check_keep_rows(h, row_bytes, {}, "none");
  }
}

// The stream of a prompt's last 128 rows out of 4,096, as bounded replay takes it.
void time_keep_rows(Harness& h) {
  DeviceArray<uint8_t> stream(size_t{4096} * 40960);
  std::vector<int32_t> kept;
  for (int32_t i = 4096 - 128; i < 4096; ++i) kept.push_back(i);
  const DeviceArray<int32_t> index(kept);
  h.time("keep_rows", "[4096, 4, 5120], the last 128", {.bytes = 2.0 * 128 * 40960}, [&](int) {
    cuda::keep_rows(h.cuda(), {.rows = 128, .index = index.data(), .data = stream.data(), .row_bytes = 40960});
  });
}

void time_rows(Harness& h, int64_t rows) {
  Random random(5);
  const int sets = rows >= 4096 ? 3 : 1;
  const int64_t dim = 5120, heads = 64, head_dim = 512;
  std::vector<DeviceArray<bf16>> x, y, q;
  DeviceArray<bf16> w(random_bf16(random, 1, dim));
  for (int s = 0; s < sets; ++s) {
    x.emplace_back(random_bf16(random, rows, dim));
    y.emplace_back(static_cast<size_t>(rows * dim));
    q.emplace_back(static_cast<size_t>(rows * heads * head_dim));
    MDI_CUDA(cudaMemset(q.back().data(), 0x3C, q.back().bytes()));
  }
  const DeviceArray<int32_t> position(positions(random, rows));
  const DeviceArray<float> f(frequencies(64));
  const RopeTable rope{f.data(), 64};
  const std::string t = "[" + std::to_string(rows) + ", ";
  const auto bytes = [rows](double per_row) { return Work{.bytes = per_row * static_cast<double>(rows)}; };
  h.time(
      "act_quant_dequant", t + "5120]", bytes(20480),
      [&](int s) { cuda::act_quant_dequant_rows(h.cuda(), x[s].data(), dim, rows, dim, y[s].data(), dim); }, sets);
  h.time(
      "act_quant codes", t + "5120]", bytes(10240 + 5280),
      [&](int s) {
        cuda::act_quant_rows(h.cuda(), x[s].data(), dim, rows, dim, reinterpret_cast<e4m3*>(y[s].data()), dim,
                             reinterpret_cast<e8m0*>(y[s].data()) + rows * dim, dim / 32);
      },
      sets);
  h.time(
      "rms_norm_quant", t + "1280]", bytes(3 * 2560),
      [&](int s) {
        cuda::rms_norm_quant_rows(h.cuda(), x[s].data(), 1280, w.data(), rows, 1280, 1e-20f, y[s].data(), 1280,
                                  q[s].data());
      },
      sets);
  h.time(
      "rms_norm", t + "5120]", bytes(20480),
      [&](int s) { cuda::rms_norm_rows(h.cuda(), x[s].data(), dim, w.data(), rows, dim, 1e-20f, y[s].data(), dim); },
      sets);
  h.time(
      "rope", t + "64, 512]", bytes(2 * 64 * 128),
      [&](int s) { cuda::rope_rows(h.cuda(), rope, position.data(), rows, 64, 512, q[s].data(), false); }, sets);
  h.time(
      "rope_fp4", t + "32, 128]", bytes(32 * (256 + 256 + 68)),
      [&](int s) {
        cuda::rope_fp4_rows(h.cuda(), rope, position.data(), rows, 32, 128, q[s].data(),
                            reinterpret_cast<uint8_t*>(y[s].data()), reinterpret_cast<e8m0*>(x[s].data()), q[s].data());
      },
      sets);
  h.time(
      "window_rows", t + "512]", bytes(1024 + 528),
      [&](int s) {
        cuda::window_rows(h.cuda(), rope, position.data(), rows, 512, x[s].data(), w.data(), 1e-20f,
                          reinterpret_cast<std::byte*>(y[s].data()));
      },
      sets);
}

int run(int argc, char** argv) {
  Harness h("rows", argc, argv);
  if (h.wants("formats")) check_formats(h);
  const std::vector<int64_t> counts = h.small() ? std::vector<int64_t>{0, 3} : std::vector<int64_t>{0, 1, 7, 130};
  for (const Rows kind : kAllRows) {
    for (const int64_t rows : counts) {
      if (h.wants("act_quant")) {
        for (const int64_t k : {5120, 64, 32, 96, 40, 2304}) {
          for (const int64_t pad : {0, 8, 3}) check_act_quant(h, rows, k, pad, kind);
        }
      }
      if (h.wants("rms_norm")) {
        for (const int64_t n : {1280, 512, 64, 32, 128, 96, 34, 5120}) {
          for (const int64_t pad : {0, 6}) check_norm(h, rows, n, pad, kind);
        }
      }
      if (h.wants("rope")) {
        check_rope(h, rows, 64, 512, 64, kind);
        check_rope(h, rows, 32, 128, 64, kind);
        check_rope(h, rows, 8, 64, 32, kind);
        check_rope(h, rows, 3, 36, 6, kind);
      }
      if (h.wants("window_rows")) {
        check_window(h, rows, 512, 64, kind);
        check_window(h, rows, 64, 32, kind);
        check_window(h, rows, 96, 32, kind);
      }
    }
    if (h.wants("write_cache_rows")) {
      for (const int32_t ratio : {1, 2}) {
        check_cache_rows(h, {}, ratio, 512, 128, 64, kind);
        check_cache_rows(h, {{0, 0, 1}}, ratio, 512, 128, 64, kind);
        check_cache_rows(h, {{1, 127, 5}, {0, 0, 0}, {3, 254, 200}}, ratio, 512, 128, 64, kind);
        check_cache_rows(h, {{1, 5, 30}, {0, 16, 1}, {2, 0, 3}}, ratio, 64, 64, 32, kind);
      }
    }
  }
  if (h.wants("keep_rows")) check_keep_rows(h);
  if (h.timing()) {
    time_keep_rows(h);
    for (const int64_t rows : {4096, 64}) time_rows(h, rows);
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
