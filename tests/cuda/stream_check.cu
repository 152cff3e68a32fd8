// The stages of the residual stream, engram, routing, drafts and commits against the CPU backend.
#include "harness.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/cuda/stages.h"
#include "random_data.h"

namespace mdi::check {

namespace {

std::string text(const TestStep& step, const std::string& rest) { return step.shape + " " + rest; }

std::vector<std::vector<TestSequence>> step_shapes(bool small) {
  std::vector<std::vector<TestSequence>> shapes = {
      {}, {{0, 0, 1}}, {{2, 5, 3}, {0, 0, 0}, {1, 126, 4}}, {{0, 3, 37}, {1, 0, 1}, {3, 1000, 93}}};
  if (small) shapes.pop_back();
  return shapes;
}

// ---- embed ----------------------------------------------------------------------------------------------------------
void check_embed(Harness& h, const TestStep& step, int32_t dim, int32_t hc, bool replaced) {
  Random random(static_cast<uint64_t>(dim));
  const int64_t rows = step.host.rows;
  const Mirror<bf16> table(random_bf16(random, 100, dim)), other(random_bf16(random, 3, dim));
  std::vector<int32_t> of;
  for (int64_t i = 0; i < rows; ++i) of.push_back(static_cast<int32_t>(random.below(5)) - 2);
  for (int32_t& i : of) i = std::max(i, -1);
  const Mirror<int32_t> override_of(of);
  Mirror<bf16> stream(static_cast<size_t>(rows * hc * dim));
  Mirror<float> pre(static_cast<size_t>(rows * hc));
  EmbedArgs a{.dim = dim, .hc = hc, .table = table.host.data(), .h = stream.host.data(), .pre = pre.host.data()};
  EmbedArgs b{.dim = dim, .hc = hc, .table = table.device.data(), .h = stream.device.data(), .pre = pre.device.data()};
  if (replaced) {
    a.override_rows = other.host.data(), a.override_of = override_of.host.data();
    b.override_rows = other.device.data(), b.override_of = override_of.device.data();
  }
  cpu::embed(h.cpu(), step.host, a);
  cuda::embed(h.cuda(), step.device, b);
  h.report("embed stream", text(step, "dim " + std::to_string(dim)), compare_bits(stream));
  h.report("embed pre", text(step, "dim " + std::to_string(dim)), compare_bits(pre));
}

// ---- hyper-connections ----------------------------------------------------------------------------------------------
struct Hyper {
  int32_t dim, hc;
  Mirror<float> fn, scale, base, pre;
  Mirror<bf16> h, norm, y;
  Mirror<float> post, comb;

  Hyper(uint64_t seed, int64_t rows, int32_t width, int32_t copies, Rows kind) : dim(width), hc(copies) {
    Random random(seed);
    const int64_t mixes = (2 + hc) * hc, k = int64_t{hc} * dim;
    fn = Mirror<float>(random_floats(random, mixes, k, Rows::kGaussian, 1.0f / std::sqrt(static_cast<float>(k))));
    scale = Mirror<float>(random_floats(random, 1, 3));
    base = Mirror<float>(random_floats(random, 1, mixes));
    pre = Mirror<float>(random_floats(random, rows, hc, Rows::kPositive));
    post = Mirror<float>(random_floats(random, rows, hc));
    comb = Mirror<float>(random_floats(random, rows, int64_t{hc} * hc));
    h = Mirror<bf16>(random_bf16(random, rows, k, kind));
    norm = Mirror<bf16>(random_bf16(random, 1, dim));
    y = Mirror<bf16>(random_bf16(random, rows, dim, kind));
  }
};

struct Collapsed {
  Mirror<bf16> x;
  Mirror<float> pre, post, comb;
  Collapsed(int64_t rows, int32_t dim, int32_t hc)
      : x(static_cast<size_t>(rows * dim)),
        pre(static_cast<size_t>(rows * hc)),
        post(static_cast<size_t>(rows * hc)),
        comb(static_cast<size_t>(rows * hc * hc)) {}
};

// Rows [first, first + rows) on the device; the first call's rows on the host too.
void collapse(Harness& h, const Hyper& d, int64_t first, int64_t rows, Collapsed& out, bool host) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  HcCollapseArgs a;
  a.dim = d.dim, a.hc = d.hc, a.sinkhorn_iters = 20, a.eps = 1e-6f, a.norm_eps = 1e-20f;
  const auto set = [&](auto side) {
    a.h = side(d.h) + first * d.hc * d.dim;
    a.pre_in = side(d.pre) + first * d.hc;
    a.weights = {side(d.fn), side(d.scale), side(d.base)};
    a.norm = side(d.norm);
    a.x = const_cast<bf16*>(side(out.x));
    a.pre_out = const_cast<float*>(side(out.pre));
    a.post = const_cast<float*>(side(out.post));
    a.comb = const_cast<float*>(side(out.comb));
  };
  if (host) {
    set([](const auto& m) { return m.host.data(); });
    cpu::hc_collapse(h.cpu(), step, a);
  }
  set([](const auto& m) { return std::as_const(m.device).data(); });
  cuda::hc_collapse(h.cuda(), step, a);
}

void check_collapse(Harness& h, int64_t rows, int32_t dim, int32_t hc, Rows kind) {
  const Hyper d(static_cast<uint64_t>(rows + dim), rows, dim, hc, kind);
  Collapsed out(rows, dim, hc);
  collapse(h, d, 0, rows, out, true);
  const std::string shape =
      "[" + std::to_string(rows) + ", " + std::to_string(hc) + ", " + std::to_string(dim) + "] " + rows_name(kind);
  h.report("hc_collapse x", shape, compare_bits(out.x));
  // fp32 sums in another order, through a sigmoid or 20 rounds of Sinkhorn.
  h.report("hc_collapse pre", shape, compare(out.pre, hc, {.ulps = 0, .row = 4e-5}));
  h.report("hc_collapse post", shape, compare(out.post, hc, {.ulps = 0, .row = 4e-5}));
  h.report("hc_collapse comb", shape, compare(out.comb, hc * hc, {.ulps = 0, .row = 4e-5}));
  if (rows < 2) return;
  // The last row alone has the bits that it has among the others.
  Collapsed alone(1, dim, hc);
  collapse(h, d, rows - 1, 1, alone, false);
  const auto tail = [&](const auto& all, size_t n) {
    const auto values = all.device.download();
    return std::decay_t<decltype(values)>(values.end() - static_cast<ptrdiff_t>(n), values.end());
  };
  h.report("hc_collapse alone x", shape,
           compare_bits(alone.x.device.download(), tail(out.x, static_cast<size_t>(dim))));
  h.report("hc_collapse alone comb", shape,
           compare_bits(alone.comb.device.download(), tail(out.comb, static_cast<size_t>(hc * hc))));
}

void check_expand(Harness& h, int64_t rows, int32_t dim, int32_t hc, Rows kind) {
  Hyper d(static_cast<uint64_t>(rows * 3 + dim), rows, dim, hc, kind);
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  const std::string shape =
      "[" + std::to_string(rows) + ", " + std::to_string(hc) + ", " + std::to_string(dim) + "] " + rows_name(kind);
  Mirror<bf16> mean(static_cast<size_t>(rows * 2 * dim));
  cpu::mean_copies(h.cpu(), step, {dim, hc, d.h.host.data(), mean.host.data() + dim, 2 * dim});
  cuda::mean_copies(h.cuda(), step, {dim, hc, d.h.device.data(), mean.device.data() + dim, 2 * dim});
  h.report("mean_copies", shape, compare_bits(mean));
  cpu::hc_expand(h.cpu(), step, {dim, hc, d.y.host.data(), d.post.host.data(), d.comb.host.data(), d.h.host.data()});
  cuda::hc_expand(h.cuda(), step,
                  {dim, hc, d.y.device.data(), d.post.device.data(), d.comb.device.data(), d.h.device.data()});
  h.report("hc_expand", shape, compare_bits(d.h));
}

void check_head(Harness& h, int64_t rows, int32_t samples, int32_t dim, int32_t hc, int64_t vocab) {
  Random random(static_cast<uint64_t>(rows + dim + samples));
  const Hyper d(static_cast<uint64_t>(rows * 5 + dim), rows, dim, hc, Rows::kGaussian);
  const TestWeight weight = random_weight(random, WeightKind::kBF16, vocab, dim);
  std::vector<int32_t> which;
  for (int32_t i = 0; i < samples; ++i) which.push_back(static_cast<int32_t>(random.below(rows)));
  const Mirror<int32_t> sample_rows(which);
  Mirror<bf16> z(static_cast<size_t>(samples * dim));
  Mirror<float> logits(static_cast<size_t>(samples * vocab));
  HeadArgs a;
  a.dim = dim, a.hc = hc, a.samples = samples, a.eps = 1e-20f;
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  a.sample_rows = sample_rows.host.data(), a.h = d.h.host.data(), a.pre = d.pre.host.data();
  a.norm = d.norm.host.data(), a.head = weight.host, a.z = z.host.data(), a.logits = logits.host.data();
  cpu::head(h.cpu(), step, a);
  a.sample_rows = sample_rows.device.data(), a.h = d.h.device.data(), a.pre = d.pre.device.data();
  a.norm = d.norm.device.data(), a.head = weight.device, a.z = z.device.data(), a.logits = logits.device.data();
  cuda::head(h.cuda(), step, a);
  const std::string shape = "samples " + std::to_string(samples) + " dim " + std::to_string(dim);
  h.report("head z", shape, compare_bits(z));
  h.report("head logits", shape, compare(logits, vocab, {.ulps = 0, .row = 1e-5}));
}

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
  // kv is rounded to bf16 from sums in another order, so a value may be one rounding off before the gate.
  h.report("engram", text(step, "dim " + std::to_string(dim) + " " + rows_name(kind)),
           compare(stream, int64_t{hc} * dim, {.ulps = 2, .row = 4e-3}));

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

// ---- commits --------------------------------------------------------------------------------------------------------
void check_commit(Harness& h, const TestStep& step, int32_t window, int32_t head_dim) {
  Random random(static_cast<uint64_t>(window + head_dim));
  const WindowRow row{head_dim};
  const int64_t rows = step.host.rows, slot_bytes = 2 * window * row.bytes();
  std::vector<std::byte> fresh(static_cast<size_t>(rows * row.bytes()));
  for (std::byte& b : fresh) b = static_cast<std::byte>(random.next() & 255);
  const Mirror<std::byte> window_rows(fresh);
  Mirror<std::byte> rings(static_cast<size_t>(step.slots * slot_bytes));  // poisoned alike on both sides
  Mirror<float> pending(static_cast<size_t>(step.slots * 3 * 2 * head_dim));
  const Mirror<float> step_pending(random_floats(random, rows, 2 * head_dim));
  std::vector<int32_t> counts;
  for (int32_t s = 0; s < step.host.sequences; ++s) {
    const int32_t n = step.host.seq_count[s];
    counts.push_back(s == 1 ? 0 : s == 2 ? std::min(n, 1) : n);
  }
  const Mirror<int32_t> accepted(counts);
  RingView ring{
      .base = rings.host.data() + window * row.bytes(), .slot_stride = slot_bytes, .window = window, .row = row};
  cpu::commit_ring(h.cpu(), step.host, {accepted.host.data(), window_rows.host.data(), ring});
  ring.base = rings.device.data() + window * row.bytes();
  cuda::commit_ring(h.cuda(), step.device, {accepted.device.data(), window_rows.device.data(), ring});
  h.report("commit_ring", text(step, "window " + std::to_string(window)), compare_bits(rings));
  const int64_t stride = 3 * 2 * head_dim;
  cpu::commit_pending(
      h.cpu(), step.host,
      {accepted.host.data(), head_dim, step_pending.host.data(), pending.host.data() + 2 * head_dim, stride});
  cuda::commit_pending(
      h.cuda(), step.device,
      {accepted.device.data(), head_dim, step_pending.device.data(), pending.device.data() + 2 * head_dim, stride});
  h.report("commit_pending", text(step, "head " + std::to_string(head_dim)), compare_bits(pending));
}

// ---- time -----------------------------------------------------------------------------------------------------------
void time_stream(Harness& h, int64_t rows) {
  const int sets = rows >= 1024 ? 1 : 4;  // the stream of 4,096 rows is 168 MB
  const int32_t dim = 5120, hc = 4;
  std::vector<std::unique_ptr<Hyper>> data;
  std::vector<std::unique_ptr<Collapsed>> out;
  for (int s = 0; s < sets; ++s) {
    data.push_back(std::make_unique<Hyper>(static_cast<uint64_t>(s), rows, dim, hc, Rows::kGaussian));
    out.push_back(std::make_unique<Collapsed>(rows, dim, hc));
  }
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  const std::string shape = "[" + std::to_string(rows) + ", 4, 5120]";
  const auto r = static_cast<double>(rows);
  h.time(
      "hc_collapse", shape, {.bytes = r * 5 * 10240 + 2e6},
      [&](int s) { collapse(h, *data[static_cast<size_t>(s)], 0, rows, *out[static_cast<size_t>(s)], false); }, sets);
  h.time(
      "hc_expand", shape, {.bytes = r * 9 * 10240},
      [&](int s) {
        Hyper& d = *data[static_cast<size_t>(s)];
        cuda::hc_expand(h.cuda(), step,
                        {dim, hc, d.y.device.data(), d.post.device.data(), d.comb.device.data(), d.h.device.data()});
      },
      sets);
  h.time(
      "mean_copies", shape, {.bytes = r * 5 * 10240},
      [&](int s) {
        Hyper& d = *data[static_cast<size_t>(s)];
        cuda::mean_copies(h.cuda(), step,
                          {dim, hc, d.h.device.data(), out[static_cast<size_t>(s)]->x.device.data(), dim});
      },
      sets);
}

void time_engram(Harness& h, int32_t rows) {
  Random random(11);
  const int32_t dim = 5120, hc = 4, head_dim = 256, columns = 24;
  const TestStep step = make_step(random, {{0, 0, rows}}, 100);
  const int64_t table_rows = 200000;
  const TestWeight table = random_weight(random, WeightKind::kE4M3, table_rows, head_dim);
  const DeviceArray<e8m0> scale(std::vector<e8m0>(static_cast<size_t>(table_rows * 8), e8m0{120}));
  const TestWeight wkv = random_weight(random, WeightKind::kE4M3, 25600, 6144);
  std::vector<int64_t> which;
  for (int64_t i = 0; i < int64_t{rows} * columns; ++i) which.push_back(random.below(table_rows));
  const DeviceArray<int64_t> table_row(which);
  const DeviceArray<bf16> q(random_bf16(random, hc, dim)), k(random_bf16(random, hc, dim));
  DeviceArray<bf16> stream(random_bf16(random, rows, hc * dim));
  EngramArgs a;
  a.dim = dim, a.hc = hc, a.columns = columns, a.head_dim = head_dim, a.eps = 1e-20f;
  a.rows = table_row.data(), a.table = static_cast<const e4m3*>(table.device.data), a.table_scale = scale.data();
  a.wkv = wkv.device, a.q_weight = q.data(), a.k_weight = k.data(), a.h = stream.data();
  const double r = rows;
  h.time("engram", "[" + std::to_string(rows) + "] with its product",
         {.bytes = r * (24 * 264 + 2 * 12288 + 2 * 51200 + 2 * 40960) + 157e6, .flops = 2 * r * 25600 * 6144},
         [&](int) { cuda::engram(h.cuda(), step.device, a); });
  const TestWeight gate = random_weight(random, WeightKind::kBF16, 384, dim);
  const DeviceArray<bf16> x(random_bf16(random, rows, dim));
  const DeviceArray<float> bias(random_floats(random, 1, 384));
  DeviceArray<int32_t> index(static_cast<size_t>(rows * 6));
  DeviceArray<float> weight(static_cast<size_t>(rows * 6));
  RouteArgs route;
  route.experts = 384, route.topk = 6, route.route_scale = 1.5f, route.gate_temp = 1.0f;
  route.x = x.data(), route.gate = gate.device, route.bias = bias.data();
  route.index = index.data(), route.weight = weight.data();
  h.time("route", "[" + std::to_string(rows) + ", 384] with its product",
         {.bytes = r * (10240 + 3072) + 4e6, .flops = 2 * r * 384 * 5120},
         [&](int) { cuda::route(h.cuda(), step.device, route); });
}

int run(int argc, char** argv) {
  Harness h("stream", argc, argv, int64_t{1} << 30);
  std::vector<TestStep> steps;
  Random random(1);
  for (const auto& shape : step_shapes(h.small())) steps.push_back(make_step(random, shape, 100, 0.2));

  if (h.wants("embed")) {
    for (const TestStep& step : steps) {
      for (const bool replaced : {false, true}) {
        check_embed(h, step, 5120, 4, replaced);
        check_embed(h, step, 20, 3, replaced);
      }
    }
  }
  for (const Rows kind : kAllRows) {
    if (h.wants("hc_collapse")) {
      for (const int64_t rows :
           h.small() ? std::vector<int64_t>{0, 1, 19} : std::vector<int64_t>{0, 1, 2, 17, 64, 130}) {
        check_collapse(h, rows, 5120, 4, kind);
        check_collapse(h, rows, 128, 4, kind);
        check_collapse(h, rows, 1120, 4, kind);
        check_collapse(h, rows, 40, 4, kind);
        check_collapse(h, rows, 64, 2, kind);
      }
      if (!h.small()) check_collapse(h, 1059, 5120, 4, kind);  // past the limit of the spread units
      if (!h.small()) check_collapse(h, 1600, 128, 4, kind);
    }
    if (h.wants("hc_expand")) {
      for (const int64_t rows : {0, 1, 33}) {
        check_expand(h, rows, 5120, 4, kind);
        check_expand(h, rows, 20, 4, kind);
        check_expand(h, rows, 64, 3, kind);
      }
    }
    if (h.wants("engram")) {
      for (const TestStep& step : steps) {
        check_engram(h, step, 128, 4, 2, 32, kind);
        if (kind == Rows::kGaussian && !h.small()) check_engram(h, step, 1024, 4, 8, 256, kind);
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
  if (h.wants("head")) {
    check_head(h, 5, 0, 128, 4, 512);
    check_head(h, 5, 1, 128, 4, 512);
    check_head(h, 70, 66, 128, 4, 512);
    check_head(h, 9, 3, 5120, 4, 1000);
  }
  if (h.wants("draft")) {
    for (const TestStep& step : steps) {
      check_draft(h, step, 128, 32, 512, 64, 32);
      check_draft(h, step, 1024, 256, 1000, 512, 64);
    }
  }
  if (h.wants("commit")) {
    for (const TestStep& step : steps) {
      check_commit(h, step, 16, 64);
      check_commit(h, step, 128, 512);
    }
  }
  if (h.timing()) {
    for (const int64_t rows : {4096, 512, 64}) time_stream(h, rows);
    for (const int32_t rows : {4096, 64}) time_engram(h, rows);
  }
  return h.finish();
}

}  // namespace

}  // namespace mdi::check

int main(int argc, char** argv) {
  try {
    return mdi::check::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
