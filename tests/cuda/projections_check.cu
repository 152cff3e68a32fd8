// Checks of the products around attention: queries and window rows, and the grouped output; small shapes on the plain
// path and larger ones on the tensor cores; timings at the released shapes.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <string>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {
namespace {

struct Shape {
  int32_t dim, rank, heads, head_dim, rope_dim, groups, o_rank;
};
constexpr Shape kTiny{64, 64, 8, 64, 16, 4, 32};
constexpr Shape kOdd{96, 32, 4, 32, 32, 2, 32};
constexpr Shape kMiddle{512, 256, 8, 128, 64, 4, 128};
constexpr Shape kReleased{5120, 1280, 64, 512, 64, 8, 1024};

std::string shape_text(const TestStep& step, const Shape& s) {
  return step.shape + " dim=" + std::to_string(s.dim) + " heads=" + std::to_string(s.heads) + "x" +
         std::to_string(s.head_dim);
}

Mirror<float> rope_table(const Shape& s) {
  std::vector<float> inv_freq(static_cast<size_t>(s.rope_dim / 2));
  cpu::rope_frequencies({.rope_dim = s.rope_dim,
                         .theta = 160000,
                         .factor = 16,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .original_seq_len = 65536},
                        inv_freq.data());
  return Mirror<float>(inv_freq);
}

std::vector<bf16> norm_weights(Random& random, int64_t n) {
  std::vector<float> w = random_floats(random, 1, n, Rows::kGaussian, 0.1f);
  std::vector<bf16> out;
  for (const float v : w) out.push_back(to_bf16(1.0f + v));
  return out;
}

std::vector<double> window_values(const std::vector<std::byte>& rows, const WindowRow& layout) {
  std::vector<double> out;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(layout.bytes())) {
    const std::byte* row = rows.data() + at;
    for (int32_t i = 0; i < layout.head_dim; ++i) {
      out.push_back(double{to_float(WindowRow::codes(row)[i])} * to_float(layout.scales(row)[i / 32]));
    }
  }
  return out;
}

void check_input(Harness& h, const Shape& s, const std::vector<TestSequence>& sequences, Rows rows) {
  Random random(31);
  const TestStep step = make_step(random, sequences, 1000);
  const int64_t tokens = step.host.rows;
  const TestWeight wq_a = random_weight(random, WeightKind::kE4M3, s.rank, s.dim);
  const TestWeight wq_b = random_weight(random, WeightKind::kE4M3, s.heads * s.head_dim, s.rank);
  const TestWeight wkv = random_weight(random, WeightKind::kE4M3, s.head_dim, s.dim);
  const Mirror<bf16> q_norm(norm_weights(random, s.rank)), kv_norm(norm_weights(random, s.head_dim));
  const Mirror<float> inv_freq = rope_table(s);
  const Mirror<bf16> x(random_bf16(random, tokens, s.dim, rows));
  const WindowRow layout{s.head_dim};
  Mirror<bf16> qr(static_cast<size_t>(tokens * s.rank)), q(static_cast<size_t>(tokens * s.heads * s.head_dim));
  Mirror<std::byte> window(static_cast<size_t>(tokens * layout.bytes()));
  AttentionInputArgs args{.heads = s.heads,
                          .head_dim = s.head_dim,
                          .eps = 1e-20f,
                          .x = x.host.data(),
                          .wq_a = wq_a.host,
                          .wq_b = wq_b.host,
                          .wkv = wkv.host,
                          .q_norm = q_norm.host.data(),
                          .kv_norm = kv_norm.host.data(),
                          .rope = {.inv_freq = inv_freq.host.data(), .rope_dim = s.rope_dim},
                          .qr = qr.host.data(),
                          .q = q.host.data(),
                          .window_rows = window.host.data()};
  cpu::attention_input(h.cpu(), step.host, args);
  args.x = x.device.data();
  args.wq_a = wq_a.device;
  args.wq_b = wq_b.device;
  args.wkv = wkv.device;
  args.q_norm = q_norm.device.data();
  args.kv_norm = kv_norm.device.data();
  args.rope.inv_freq = inv_freq.device.data();
  args.qr = qr.device.data();
  args.q = q.device.data();
  args.window_rows = window.device.data();
  cuda::attention_input(h.cuda(), step.device, args);
  const std::string text = shape_text(step, s) + " " + rows_name(rows);
  // One rounding in qr; in q and the window one code of e4m3 where such a rounding crosses a tie.
  h.report("attention_input qr", text, compare(qr, s.rank, {.ulps = 2, .row = 1e-4}));
  h.report("attention_input q", text, compare(q, s.head_dim, {.ulps = 2, .row = 2e-2}));
  h.report("attention_input window", text,
           compare_values(window_values(window.device.download(), layout), window_values(window.host, layout),
                          s.head_dim, {.ulps = 16, .row = 1e-3}));
}

void check_output(Harness& h, const Shape& s, const std::vector<TestSequence>& sequences, Rows rows) {
  Random random(32);
  const TestStep step = make_step(random, sequences, 1000);
  const int64_t tokens = step.host.rows, width = int64_t{s.heads} * s.head_dim, ranks = int64_t{s.groups} * s.o_rank;
  const TestWeight wo_a = random_weight(random, WeightKind::kE4M3, ranks, width / s.groups);
  const TestWeight wo_b = random_weight(random, WeightKind::kE4M3, s.dim, ranks);
  const Mirror<float> inv_freq = rope_table(s);
  Mirror<bf16> o(random_bf16(random, tokens, width, rows));
  Mirror<bf16> y(static_cast<size_t>(tokens * s.dim));
  AttentionOutputArgs args{.heads = s.heads,
                           .head_dim = s.head_dim,
                           .groups = s.groups,
                           .o_rank = s.o_rank,
                           .o = o.host.data(),
                           .wo_a = wo_a.host,
                           .wo_b = wo_b.host,
                           .rope = {.inv_freq = inv_freq.host.data(), .rope_dim = s.rope_dim},
                           .y = y.host.data()};
  cpu::attention_output(h.cpu(), step.host, args);
  args.o = o.device.data();
  args.wo_a = wo_a.device;
  args.wo_b = wo_b.device;
  args.rope.inv_freq = inv_freq.device.data();
  args.y = y.device.data();
  cuda::attention_output(h.cuda(), step.device, args);
  const std::string text = shape_text(step, s) + " " + rows_name(rows);
  h.report("attention_output y", text, compare(y, s.dim, {.ulps = 2, .row = 2e-2}));
}

void time_projections(Harness& h, int32_t tokens) {
  const Shape& s = kReleased;
  Random random(33);
  const TestStep step = make_step(random, {{.slot = 0, .start = 126976, .count = tokens, .floor = 0}}, 1000);
  const int64_t width = int64_t{s.heads} * s.head_dim, ranks = int64_t{s.groups} * s.o_rank;
  const DeviceWeight wq_a(WeightKind::kE4M3, s.rank, s.dim, 1), wq_b(WeightKind::kE4M3, width, s.rank, 1),
      wkv(WeightKind::kE4M3, s.head_dim, s.dim, 1), wo_a(WeightKind::kE4M3, ranks, width / s.groups, 1),
      wo_b(WeightKind::kE4M3, s.dim, ranks, 1);
  const Mirror<bf16> q_norm(norm_weights(random, s.rank)), kv_norm(norm_weights(random, s.head_dim));
  const Mirror<float> inv_freq = rope_table(s);
  const WindowRow layout{s.head_dim};
  DeviceArray<bf16> x(static_cast<size_t>(int64_t{tokens} * s.dim)), q(static_cast<size_t>(tokens * width)),
      qr(static_cast<size_t>(int64_t{tokens} * s.rank)), y(static_cast<size_t>(int64_t{tokens} * s.dim));
  DeviceArray<std::byte> window(static_cast<size_t>(tokens * layout.bytes()));
  fill(Fill::kBF16, x.data(), int64_t{tokens} * s.dim);
  const RopeTable rope{.inv_freq = inv_freq.device.data(), .rope_dim = s.rope_dim};
  const double m = tokens;
  const double in_weights = static_cast<double>(s.rank) * s.dim + static_cast<double>(width) * s.rank +
                            static_cast<double>(s.head_dim) * s.dim;
  const double out_weights = static_cast<double>(ranks) * static_cast<double>(width / s.groups) +
                             static_cast<double>(s.dim) * static_cast<double>(ranks);
  h.time("time attention_input", step.shape,
         {.bytes = in_weights + m * 2 * (s.dim + static_cast<double>(width)),
          .flops = 2 * m * in_weights,
          .tflops = kFP8TFlops},
         [&](int) {
           cuda::attention_input(h.cuda(), step.device,
                                 {.heads = s.heads,
                                  .head_dim = s.head_dim,
                                  .eps = 1e-20f,
                                  .x = x.data(),
                                  .wq_a = wq_a.weight,
                                  .wq_b = wq_b.weight,
                                  .wkv = wkv.weight,
                                  .q_norm = q_norm.device.data(),
                                  .kv_norm = kv_norm.device.data(),
                                  .rope = rope,
                                  .qr = qr.data(),
                                  .q = q.data(),
                                  .window_rows = window.data()});
         });
  fill(Fill::kBF16, q.data(), tokens * width);
  h.time("time attention_output", step.shape,
         {.bytes = out_weights + m * 2 * (s.dim + static_cast<double>(width)),
          .flops = 2 * m * out_weights,
          .tflops = kFP8TFlops},
         [&](int) {
           cuda::attention_output(h.cuda(), step.device,
                                  {.heads = s.heads,
                                   .head_dim = s.head_dim,
                                   .groups = s.groups,
                                   .o_rank = s.o_rank,
                                   .o = q.data(),
                                   .wo_a = wo_a.weight,
                                   .wo_b = wo_b.weight,
                                   .rope = rope,
                                   .y = y.data()});
         });
}

}  // namespace
}  // namespace mdi::check

int main(int argc, char** argv) {
  using namespace mdi::check;
  Harness h("projections", argc, argv);
  const std::vector<TestSequence> none, one{{.slot = 1, .start = 70000, .count = 1, .floor = 0}},
      two{{.slot = 2, .start = 5, .count = 37, .floor = 0}, {.slot = 0, .start = 130000, .count = 64, .floor = 0}};
  for (const Shape& s : {kTiny, kOdd, kMiddle}) {
    for (const auto& sequences : {none, one, two}) {
      if (h.wants("attention_input")) check_input(h, s, sequences, Rows::kGaussian);
      if (h.wants("attention_output")) check_output(h, s, sequences, Rows::kGaussian);
    }
  }
  for (const Rows rows : kAllRows) {
    if (h.small()) break;
    if (h.wants("attention_input")) check_input(h, kMiddle, two, rows);
    if (h.wants("attention_output")) check_output(h, kMiddle, two, rows);
  }
  if (h.timing()) {
    for (const int32_t tokens : {4096, 64}) time_projections(h, tokens);
  }
  return h.finish();
}
