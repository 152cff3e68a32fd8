// Engram, routing and the draft's heads against the CPU backend.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "device_data.cuh"
#include "harness.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"
#include "step_shapes.h"

namespace mdi::check {

namespace {

// ---- engram ---------------------------------------------------------------------------------------------------------
void check_engram(Harness& h, const TestStep& step, int32_t dim, int32_t hc, int32_t heads, int32_t head_dim,
                  Rows kind) {
  Random random(static_cast<uint64_t>(dim + step.host.rows));
  const int32_t ngram = 4, columns = 3 * heads, vocab = 100;
  const int64_t rows = step.host.rows;
  std::vector<int32_t> map, past;
  for (int32_t i = 0; i < vocab; ++i) map.push_back(static_cast<int32_t>(random.below(80)));
  for (int32_t i = 0; i < step.slots * 3; ++i) past.push_back(static_cast<int32_t>(random.below(81)) - 1);
  std::vector<int64_t> multipliers, primes, offsets;
  for (int j = 0; j < ngram; ++j) multipliers.push_back(76632096046245 - 2 * random.below(1000000));
  int64_t table_rows = 0;
  for (int32_t c = 0; c < columns; ++c) {
    primes.push_back(std::vector<int64_t>{101, 103, 107, 109, 113, 127}[static_cast<size_t>(c % 6)]);
    offsets.push_back(table_rows);
    table_rows += primes.back();
  }
  const Mirror<int32_t> token_map(map);
  Mirror<int32_t> history(past);
  const Mirror<int64_t> m(multipliers), p(primes), o(offsets);
  Mirror<int32_t> compressed(static_cast<size_t>(rows));
  Mirror<int64_t> table_row(static_cast<size_t>(rows * columns));
  cpu::engram_hash(h.cpu(), step.host,
                   {ngram, heads, token_map.host.data(), 2, m.host.data(), p.host.data(), o.host.data(),
                    history.host.data(), compressed.host.data(), table_row.host.data()});
  cuda::engram_hash(h.cuda(), step.device,
                    {ngram, heads, token_map.device.data(), 2, m.device.data(), p.device.data(), o.device.data(),
                     history.device.data(), compressed.device.data(), table_row.device.data()});
  h.report("engram_hash rows", text(step, ""), compare_bits(table_row));
  h.report("engram_hash compressed", text(step, ""), compare_bits(compressed));

  const int64_t width = int64_t{columns} * head_dim;
  const TestWeight table = random_weight(random, WeightKind::kE4M3, table_rows, head_dim);
  std::vector<e8m0> scales(static_cast<size_t>(table_rows * head_dim / 32));
  for (e8m0& s : scales) s.bits = static_cast<uint8_t>(116 + random.below(8));
  const Mirror<e8m0> table_scale(scales);
  const TestWeight wkv = random_weight(random, WeightKind::kE4M3, (hc + 1) * dim, width);
  const Mirror<bf16> q(random_bf16(random, hc, dim)), k(random_bf16(random, hc, dim));
  Mirror<bf16> stream(random_bf16(random, rows, int64_t{hc} * dim, kind));
  EngramArgs a;
  a.dim = dim, a.hc = hc, a.columns = columns, a.head_dim = head_dim, a.eps = 1e-20f;
  a.rows = table_row.host.data(), a.table = reinterpret_cast<const e4m3*>(table.host.data);
  a.table_scale = table_scale.host.data(), a.wkv = wkv.host, a.q_weight = q.host.data(), a.k_weight = k.host.data();
  a.h = stream.host.data();
  cpu::engram(h.cpu(), step.host, a);
  a.rows = table_row.device.data(), a.table = reinterpret_cast<const e4m3*>(table.device.data);
  a.table_scale = table_scale.device.data(), a.wkv = wkv.device, a.q_weight = q.device.data();
  a.k_weight = k.device.data(), a.h = stream.device.data();
  cuda::engram(h.cuda(), step.device, a);
  // kv is rounded to bf16 from sums in another order, so a value may be one rounding off before the gate, and a stream
  // that cancels it keeps the whole of that. Few are.
  h.report("engram", text(step, "dim " + std::to_string(dim) + " " + rows_name(kind)),
           compare(stream, int64_t{hc} * dim, {.ulps = 2, .row = 3e-2}));
  h.report("engram bits", text(step, "dim " + std::to_string(dim) + " " + rows_name(kind)),
           compare_bits(stream, 4 + rows * hc * dim / 200));

  // Accepted prefixes: all, none, one, the rest of the sequences whole.
  std::vector<int32_t> counts;
  for (int32_t s = 0; s < step.host.sequences; ++s) {
    const int32_t n = step.host.seq_count[s];
    counts.push_back(s == 1 ? 0 : s == 2 ? std::min(n, 2) : n);
  }
  const Mirror<int32_t> accepted(counts);
  cpu::commit_history(h.cpu(), step.host,
                      {accepted.host.data(), ngram - 1, compressed.host.data(), history.host.data()});
  cuda::commit_history(h.cuda(), step.device,
                       {accepted.device.data(), ngram - 1, compressed.device.data(), history.device.data()});
  h.report("commit_history", text(step, ""), compare_bits(history));
}

// ---- route ----------------------------------------------------------------------------------------------------------
void check_route(Harness& h, const TestStep& step, int32_t experts, int32_t topk, int64_t dim, bool vision, Rows kind) {
  Random random(static_cast<uint64_t>(experts + dim + step.host.rows));
  const int64_t rows = step.host.rows;
  const TestWeight gate = random_weight(random, WeightKind::kBF16, experts, dim);
  const Mirror<bf16> x(random_bf16(random, rows, dim, kind));
  const Mirror<float> bias(random_floats(random, 1, experts)), bias_vl(random_floats(random, 1, experts));
  Mirror<int32_t> index(static_cast<size_t>(rows * topk));
  Mirror<float> weight(static_cast<size_t>(rows * topk));
  RouteArgs a;
  a.experts = experts, a.topk = topk, a.route_scale = 1.5f, a.gate_temp = 1.0f;
  a.x = x.host.data(), a.gate = gate.host, a.bias = bias.host.data(), a.index = index.host.data();
  a.bias_vl = vision ? bias_vl.host.data() : nullptr, a.weight = weight.host.data();
  cpu::route(h.cpu(), step.host, a);
  a.x = x.device.data(), a.gate = gate.device, a.bias = bias.device.data(), a.index = index.device.data();
  a.bias_vl = vision ? bias_vl.device.data() : nullptr, a.weight = weight.device.data();
  cuda::route(h.cuda(), step.device, a);
  const std::string shape = text(step, std::to_string(topk) + " of " + std::to_string(experts) + " " + rows_name(kind));
  // Dead rows tie everywhere: bias alone decides. Random scores are rarely 1e-6 apart: one swap is two indices.
  h.report("route index", shape, compare_bits(index, kind == Rows::kDeadRows ? 0 : 2));
  h.report("route weight", shape, compare(weight, topk, {.ulps = 0, .row = 4e-5}));
}

// Equal scores everywhere: the lower expert wins.
void check_route_ties(Harness& h) {
  Random random(3);
  const TestStep step = make_step(random, {{0, 0, 5}}, 100);
  const int32_t experts = 384, topk = 6;
  const int64_t dim = 128;
  const TestWeight gate = random_weight(random, WeightKind::kBF16, experts, dim);
  const Mirror<bf16> x(std::vector<bf16>(static_cast<size_t>(5 * dim), bf16{0}));
  std::vector<float> biases;
  for (int32_t e = 0; e < experts; ++e) biases.push_back(static_cast<float>(e * 7 % 5));
  const Mirror<float> bias(biases);
  Mirror<int32_t> index(static_cast<size_t>(5 * topk));
  Mirror<float> weight(static_cast<size_t>(5 * topk));
  RouteArgs a;
  a.experts = experts, a.topk = topk, a.route_scale = 1.5f, a.gate_temp = 1.0f;
  a.x = x.host.data(), a.gate = gate.host, a.bias = bias.host.data();
  a.index = index.host.data(), a.weight = weight.host.data();
  cpu::route(h.cpu(), step.host, a);
  a.x = x.device.data(), a.gate = gate.device, a.bias = bias.device.data();
  a.index = index.device.data(), a.weight = weight.device.data();
  cuda::route(h.cuda(), step.device, a);
  h.report("route index", "ties", compare_bits(index));
  h.report("route weight", "ties", compare(weight, topk, {.ulps = 0, .row = 1e-6}));
}

// ---- drafts ---------------------------------------------------------------------------------------------------------
void check_draft(Harness& h, const TestStep& step, int32_t dim, int32_t rank, int64_t vocab, int32_t head_dim,
                 int32_t rope_dim) {
  Random random(static_cast<uint64_t>(dim + rank));
  const int64_t rows = step.host.rows;
  const Mirror<bf16> x(random_bf16(random, rows, dim));
  const TestWeight w = random_weight(random, WeightKind::kE4M3, dim, dim);
  const TestWeight wkv = random_weight(random, WeightKind::kE4M3, head_dim, dim);
  const Mirror<bf16> norm(random_bf16(random, 1, dim));
  Mirror<bf16> y(static_cast<size_t>(rows * dim));
  cpu::linear_norm(h.cpu(), step.host, {1e-20f, x.host.data(), w.host, norm.host.data(), y.host.data()});
  cuda::linear_norm(h.cuda(), step.device, {1e-20f, x.device.data(), w.device, norm.device.data(), y.device.data()});
  h.report("linear_norm", text(step, ""), compare(y, dim, {.ulps = 1.1, .row = 4e-3}));

  std::vector<float> inv(static_cast<size_t>(rope_dim / 2));
  cpu::rope_frequencies({.rope_dim = rope_dim, .theta = 10000}, inv.data());
  const Mirror<float> f(inv);
  const WindowRow layout{head_dim};
  Mirror<std::byte> out(static_cast<size_t>(rows * layout.bytes()));
  cpu::window_rows(h.cpu(), step.host,
                   {1e-20f, x.host.data(), wkv.host, norm.host.data(), {f.host.data(), rope_dim}, out.host.data()});
  cuda::window_rows(
      h.cuda(), step.device,
      {1e-20f, x.device.data(), wkv.device, norm.device.data(), {f.device.data(), rope_dim}, out.device.data()});
  // A code may be one step off where a product was one bf16 rounding off: few are.
  h.report("window_rows stage", text(step, ""), compare_bits(out, 3 + rows * layout.bytes() / 50));

  const int32_t sequences = step.host.sequences;
  const TestWeight head = random_weight(random, WeightKind::kBF16, vocab, rank);
  const TestWeight proj = random_weight(random, WeightKind::kBF16, 1, dim + rank);
  const Mirror<bf16> embed(random_bf16(random, vocab, rank)), z(random_bf16(random, sequences, 2 * dim));
  const Mirror<float> base(random_floats(random, sequences, vocab + 8));
  std::vector<int32_t> tokens;
  for (int32_t s = 0; s < sequences; ++s) tokens.push_back(static_cast<int32_t>(random.below(vocab)));
  const Mirror<int32_t> token(tokens);
  Mirror<float> logits(static_cast<size_t>(sequences * vocab)), confidence(static_cast<size_t>(sequences));
  MarkovArgs a;
  a.sequences = sequences, a.dim = dim, a.rank = rank;
  a.base_stride = vocab + 8, a.z_stride = 2 * dim;
  a.token = token.host.data(), a.embed = embed.host.data(), a.head = head.host, a.confidence_proj = proj.host;
  a.base = base.host.data(), a.z = z.host.data(), a.logits = logits.host.data(), a.confidence = confidence.host.data();
  cpu::markov(h.cpu(), a);
  a.token = token.device.data(), a.embed = embed.device.data(), a.head = head.device, a.confidence_proj = proj.device;
  a.base = base.device.data(), a.z = z.device.data(), a.logits = logits.device.data();
  a.confidence = confidence.device.data();
  cuda::markov(h.cuda(), a);
  h.report("markov logits", text(step, ""), compare(logits, vocab, {.ulps = 0, .row = 1e-5}));
  h.report("markov confidence", text(step, ""), compare(confidence, 1, {.ulps = 0.02, .row = 1e-4}));
}

// ---- time -----------------------------------------------------------------------------------------------------------
void time_engram(Harness& h, int32_t rows) {
  Random random(11);
  const int32_t dim = 5120, hc = 4, head_dim = 256, columns = 24;
  const TestStep step = make_step(random, {{0, 0, rows}}, 100);
  const int64_t table_rows = 200000;
  const DeviceWeight table(WeightKind::kE4M3, table_rows, head_dim, 1);
  const DeviceArray<e8m0> scale(std::vector<e8m0>(static_cast<size_t>(table_rows * 8), e8m0{120}));
  const DeviceWeight wkv(WeightKind::kE4M3, 25600, 6144, 1);
  std::vector<int64_t> which;
  for (int64_t i = 0; i < int64_t{rows} * columns; ++i) which.push_back(random.below(table_rows));
  const DeviceArray<int64_t> table_row(which);
  const DeviceArray<bf16> q(random_bf16(random, hc, dim)), k(random_bf16(random, hc, dim));
  const DeviceArray<bf16> stream(static_cast<size_t>(rows) * hc * dim);
  fill(Fill::kBF16, stream.data(), static_cast<int64_t>(stream.size()));
  EngramArgs a;
  a.dim = dim, a.hc = hc, a.columns = columns, a.head_dim = head_dim, a.eps = 1e-20f;
  a.rows = table_row.data(), a.table = static_cast<const e4m3*>(table.weight.data), a.table_scale = scale.data();
  a.wkv = wkv.weight, a.q_weight = q.data(), a.k_weight = k.data(), a.h = stream.data();
  const double r = rows;
  h.time("engram", "[" + std::to_string(rows) + "] with its product",
         {.bytes = r * (24 * 264 + 2 * 12288 + 2 * 51200 + 2 * 40960) + 157e6, .flops = 2 * r * 25600 * 6144},
         [&](int) { cuda::engram(h.cuda(), step.device, a); });
  const DeviceWeight gate(WeightKind::kBF16, 384, dim, 1);
  const DeviceArray<bf16> x(static_cast<size_t>(rows) * dim);
  fill(Fill::kBF16, x.data(), static_cast<int64_t>(x.size()));
  const DeviceArray<float> bias(random_floats(random, 1, 384));
  DeviceArray<int32_t> index(static_cast<size_t>(rows * 6));
  DeviceArray<float> weight(static_cast<size_t>(rows * 6));
  RouteArgs route;
  route.experts = 384, route.topk = 6, route.route_scale = 1.5f, route.gate_temp = 1.0f;
  route.x = x.data(), route.gate = gate.weight, route.bias = bias.data();
  route.index = index.data(), route.weight = weight.data();
  h.time("route", "[" + std::to_string(rows) + ", 384] with its product",
         {.bytes = r * (10240 + 3072) + 4e6, .flops = 2 * r * 384 * 5120},
         [&](int) { cuda::route(h.cuda(), step.device, route); });
}

int run(int argc, char** argv) {
  Harness h("engram", argc, argv, int64_t{1} << 30);
  std::vector<TestStep> steps = test_steps(h.small());
  if (h.small()) steps.erase(steps.begin(), steps.end() - 1);
  for (const Rows kind : kAllRows) {
    if (h.small() && kind != Rows::kGaussian) continue;
    if (h.wants("engram")) {
      for (const TestStep& step : steps) {
        check_engram(h, step, 128, 4, 2, 32, kind);
        if (kind == Rows::kGaussian) check_engram(h, step, 1024, 4, 8, 256, kind);
      }
    }
    if (h.wants("route")) {
      for (const TestStep& step : steps) {
        check_route(h, step, 384, 6, 5120, false, kind);
        check_route(h, step, 16, 3, 128, true, kind);
        check_route(h, step, 33, 2, 64, true, kind);
      }
    }
  }
  if (h.wants("route")) check_route_ties(h);
  if (h.wants("draft")) {
    for (const TestStep& step : steps) {
      check_draft(h, step, 128, 32, 512, 64, 32);
      check_draft(h, step, 1024, 256, 1000, 512, 64);
    }
  }
  if (h.timing()) {
    for (const int32_t rows : {4096, 64}) time_engram(h, rows);
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) { return mdi::check::guarded(mdi::check::run, argc, argv); }
